// What ipywidgets leaves behind when a widget leaves the page: the views of its layout and of its
// style, and every view's ear for messages. Both hang on models that live on, for panels share
// layouts and a panel is shown again when its cell runs again, and with them all that was shown.
const pending = new WeakSet();

const isGone = ({ options }) => {
  const parent = options?.parent;
  return (parent?.luminoWidget ?? parent?.pWidget)?.isDisposed === true;
};

const ears = (model) => {
  const heard = model._events?.["msg:custom"] ?? [];
  return heard.map((each) => each.callback).filter((ear) => ear.name === "bound handle_message");
};

// Whose an ear is only a message can tell. That of a layout has nothing that could have the focus.
const isEarOf = (view, ear) => {
  const { el } = view;
  let heard = false;
  view.el = { blur: () => (heard = true) };
  ear({ do: "blur" });
  view.el = el;
  return heard;
};

const sweep = async (manager) => {
  pending.delete(manager);
  const models = await Promise.allSettled(Object.values(manager._models ?? {}));
  for (const { value: model } of models) {
    if (!model?.views) continue;
    const views = await Promise.allSettled(Object.values(model.views));
    for (const { value: view } of views) {
      if (!view || !isGone(view)) continue;
      const ear = view.luminoWidget ? null : ears(model).find((each) => isEarOf(view, each));
      view.remove();
      if (ear) model.off("msg:custom", ear);
    }
    if (!Object.keys(model.views).length) {
      for (const ear of ears(model)) model.off("msg:custom", ear);
    }
  }
};

// Once all of what is leaving now has left.
export const sweepSoon = (manager) => {
  if (!manager || pending.has(manager)) return;
  pending.add(manager);
  setTimeout(sweep, 0, manager);
};
