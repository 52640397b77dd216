// A graph on a GPU as one call: finds the plan that fits the inputs. See tensors.cpp for what these
// files are.

namespace {

constexpr uintptr_t kSpecializedAlignment = 16;  // what Triton compiles for

struct KnownPlan {
  std::vector<int64_t> key;
  PyObject* plan;
  bool spare;  // for calls that find the residents of a plan that fits held by somebody
};

struct SizeSource {  // a dimension of an input; the input itself, an integer, where it is negative
  Py_ssize_t input, dim;
};

struct DeviceProgram {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* specification;
  PyObject *last, *marks;  // as Program's
  char keep, by_stream;
  Py_ssize_t inputs, most, hits, broken;
  long device;
  // `slow` takes the inputs in a list and may add a plan. Where one of the lists of `hooks` is not
  // empty, somebody watches the launches.
  PyObject *slow, *get_device, *get_stream, *data_ptr, *hooks;
  ViewFunction view;
  std::vector<Py_ssize_t>* used;  // inputs whose memory is used
  std::vector<SizeSource>* sizes;
  std::vector<KnownPlan>* plans;  // the latest used first
  InputCheck* check;              // of the inputs; or null
};

struct Key {
  int64_t few[24];
  std::vector<int64_t> more;
  size_t count = 0;
  void push(int64_t value) {
    if (count < 24) few[count] = value;
    if (count == 24) more.assign(few, few + 24);
    if (count >= 24) more.push_back(value);
    count++;
  }
  const int64_t* data() const { return count > 24 ? more.data() : few; }
};

bool same_key(const Key& key, const std::vector<int64_t>& other) {
  return key.count == other.size() &&
         std::equal(other.begin(), other.end(), key.data());
}

bool read_size(const DeviceProgram* self, const SizeSource& source, PyObject* const* inputs,
               int64_t* out) {
  PyObject* given = inputs[source.input];
  if (source.dim < 0) {
    *out = PyLong_AsLongLong(given);
    return *out != -1 || !PyErr_Occurred();
  }
  DLTensor view;
  if (self->view && self->view(given, &view) == 0 && source.dim < view.ndim) {
    *out = view.shape[source.dim];
    return true;
  }
  PyErr_Clear();
  PyObject* size = PyObject_CallMethod(given, "size", "n", source.dim);
  if (!size) return false;
  *out = PyLong_AsLongLong(size);
  Py_DECREF(size);
  return *out != -1 || !PyErr_Occurred();
}

// What decides about the plan: the stream, where graphs are kept by it; symbolic sizes; which
// inputs are aligned. Fills in where the inputs are.
bool make_key(const DeviceProgram* self, PyObject* const* inputs, void** addresses, void** stream,
              Key* key) {
  PyObject* device = PyLong_FromLong(self->device);
  if (!device) return false;
  PyObject* number = PyObject_CallOneArg(self->get_stream, device);
  Py_DECREF(device);
  if (!number) return false;
  *stream = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  if (!*stream && PyErr_Occurred()) return false;
  if (self->by_stream) key->push(reinterpret_cast<int64_t>(*stream));
  for (const SizeSource& source : *self->sizes) {
    int64_t size;
    if (!read_size(self, source, inputs, &size)) return false;
    key->push(size);
  }
  Sizes known;
  if (self->check && !known.read(self->check, inputs, self->inputs)) return false;
  uint64_t unaligned = 0;
  size_t bit = 0;
  for (Py_ssize_t input : *self->used) {
    DLTensor view;
    bool viewed;
    if (!find_address(self->data_ptr, self->view, inputs[input], &view, &viewed,
                      &addresses[input])) {
      return false;
    }
    if (self->check && is_checked(self->check, input) &&
        !(viewed && fits((*self->check->inputs)[input], view, known.values))) {
      return false;  // the host program says what is wrong
    }
    bool odd = reinterpret_cast<uintptr_t>(addresses[input]) % kSpecializedAlignment != 0;
    unaligned |= static_cast<uint64_t>(odd) << bit;
    if (++bit == 64) {
      key->push(static_cast<int64_t>(unaligned));
      unaligned = 0;
      bit = 0;
    }
  }
  if (bit) key->push(static_cast<int64_t>(unaligned));
  return !self->check || lies_apart(self->check, inputs, self->inputs);
}

bool on_device(const DeviceProgram* self) {
  PyObject* number = PyObject_CallNoArgs(self->get_device);
  long device = number ? PyLong_AsLong(number) : -1;
  Py_XDECREF(number);
  PyErr_Clear();
  return device == self->device;
}

bool is_watched(const DeviceProgram* self) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->hooks); i++) {
    if (PyObject_Size(PyTuple_GET_ITEM(self->hooks, i)) != 0) {
      PyErr_Clear();
      return true;
    }
  }
  return false;
}

// The plans that fit a call, held, the best first: those that know most inputs by heart, so copy
// fewest; of these the latest used. Spare ones are last.
struct Candidates {
  struct One {
    Plan* plan;
    bool spare;
  };
  std::vector<One> all;
  Candidates(const DeviceProgram* self, const Key& key, void* const* addresses) {
    for (const KnownPlan& each : *self->plans) {
      auto* plan = reinterpret_cast<Plan*>(each.plan);
      if (same_key(key, each.key) && plan_fits(plan, addresses)) all.push_back({plan, each.spare});
    }
    auto better = [](const One& a, const One& b) {
      if (a.spare != b.spare) return b.spare;
      return a.plan->fixed->size() > b.plan->fixed->size();
    };
    if (all.size() > 1) std::stable_sort(all.begin(), all.end(), better);
    for (const One& each : all) Py_INCREF(each.plan);
  }
  Candidates(const Candidates&) = delete;
  ~Candidates() {
    for (const One& each : all) Py_DECREF(each.plan);
  }
};

// The plan for a call, held; null if there is none. Where it has residents, they are handed out.
// `held` becomes whether somebody else holds those of a plan that fits.
PyObject* find_plan(DeviceProgram* self, const Key& key, void* const* addresses, Handed* handed,
                    bool* held) {
  Candidates candidates(self, key, addresses);
  *held = false;
  for (const auto& [plan, spare] : candidates.all) {
    if (spare && !*held) break;
    if (!plan->residents->empty() && !hand_out(plan, handed)) {
      *held = true;
      continue;
    }
    auto& plans = *self->plans;  // others may have changed them meanwhile
    for (size_t i = 1; i < plans.size(); i++) {
      if (plans[i].plan != reinterpret_cast<PyObject*>(plan)) continue;
      std::rotate(plans.begin(), plans.begin() + i, plans.begin() + i + 1);
    }
    return Py_NewRef(reinterpret_cast<PyObject*>(plan));
  }
  return nullptr;
}

// Whether a plan is a graph, and its stream is being captured into somebody else's.
bool is_captured(const Plan* plan, void* stream) {
  if (!plan->graph || !stream) return false;  // the default stream cannot be captured
  int status = 0;
  uint64_t id;
  void* graph;
  void* const* last;
  size_t count;
  return plan->driver->capture_info(stream, &status, &id, &graph, &last, &count) || status;
}

PyObject* run_slowly(DeviceProgram* self, PyObject* const* inputs) {
  PyObject* list = PyList_New(self->inputs);
  if (!list) return nullptr;
  for (Py_ssize_t i = 0; i < self->inputs; i++) PyList_SET_ITEM(list, i, Py_NewRef(inputs[i]));
  PyObject* result = PyObject_CallOneArg(self->slow, list);
  Py_DECREF(list);
  return result;
}

// Takes the references to the inputs.
PyObject* device_run(DeviceProgram* self, PyObject* const* given) {
  Py_ssize_t count = self->inputs;
  if (self->keep) {
    PyObject* kept = PyTuple_New(count);
    for (Py_ssize_t i = 0; kept && i < count; i++) PyTuple_SET_ITEM(kept, i, Py_NewRef(given[i]));
    PyErr_Clear();
    Py_XSETREF(self->last, kept);
  }
  PyObject* list = nullptr;
  PyObject* plan = nullptr;
  {
    Handed handed;
    bool held;
    void* few[kFewSlots];
    std::vector<void*> more(static_cast<size_t>(count) > kFewSlots ? count : 0);
    void** addresses = more.empty() ? few : more.data();
    void* stream = nullptr;
    Key key;
    if (!self->plans->empty() && on_device(self) && !is_watched(self) &&
        make_key(self, given, addresses, &stream, &key)) {
      plan = find_plan(self, key, addresses, &handed, &held);
    }
    PyErr_Clear();  // what cannot be read is for the ordinary path to complain about
    if (plan && is_captured(reinterpret_cast<Plan*>(plan), stream)) Py_CLEAR(plan);
    if (!plan) {
      handed.clear();
      list = run_slowly(self, given);
      for (Py_ssize_t i = 0; i < count; i++) Py_DECREF(given[i]);
    } else {
      auto* chosen = reinterpret_cast<Plan*>(plan);
      Frame frame(chosen->slots);
      for (Py_ssize_t i = 0; i < count; i++) frame.tensors[i] = given[i];
      for (Py_ssize_t i : *self->used) frame.addresses[i] = addresses[i];
      handed.move_to(chosen, &frame);
      self->hits++;
      list = in_context(chosen->driver, self->device) ? plan_run(chosen, &frame, stream) : nullptr;
      if (!list && chosen->broken) {  // the inputs are still there: a graph frees none
        PyErr_Clear();
        self->broken++;
        list = run_slowly(self, frame.tensors);
      }
    }
  }
  Py_XDECREF(plan);
  if (list && self->marks && !mark_outputs(self->marks, list)) Py_CLEAR(list);
  return list;
}

bool count_fits(const DeviceProgram* self, Py_ssize_t count) {
  if (count == self->inputs) return true;
  PyErr_Format(PyExc_TypeError, "the program takes %zd inputs, not %zd", self->inputs, count);
  return false;
}

PyObject* device_call(PyObject* object, PyObject* const* given, size_t flags, PyObject* names) {
  auto* self = reinterpret_cast<DeviceProgram*>(object);
  if (names && PyTuple_GET_SIZE(names)) {
    PyErr_SetString(PyExc_TypeError, "the program takes no names");
    return nullptr;
  }
  if (!count_fits(self, PyVectorcall_NARGS(flags))) return nullptr;
  for (Py_ssize_t i = 0; i < self->inputs; i++) Py_INCREF(given[i]);
  return device_run(self, given);
}

// The calling convention of AOTAutograd: the inputs in a list, which is emptied. What the list held
// alone is freed as soon as nobody needs it.
PyObject* device_boxed(PyObject* object, PyObject* list) {
  auto* self = reinterpret_cast<DeviceProgram*>(object);
  if (!PyList_Check(list)) {
    PyErr_SetString(PyExc_TypeError, "the inputs must be in a list");
    return nullptr;
  }
  if (!count_fits(self, PyList_GET_SIZE(list))) return nullptr;
  std::vector<PyObject*> given(self->inputs);
  for (Py_ssize_t i = 0; i < self->inputs; i++) given[i] = Py_NewRef(PyList_GET_ITEM(list, i));
  if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) < 0) {
    for (PyObject* each : given) Py_DECREF(each);
    return nullptr;
  }
  return device_run(self, given.data());
}

// program.key(*inputs): what decides about the plan, and where the used inputs are; None where
// plans do not apply.
PyObject* device_key(PyObject* object, PyObject* const* given, Py_ssize_t count) {
  auto* self = reinterpret_cast<DeviceProgram*>(object);
  if (!count_fits(self, count)) return nullptr;
  std::vector<void*> addresses(count);
  void* stream;
  Key key;
  if (!on_device(self) || is_watched(self) ||
      !make_key(self, given, addresses.data(), &stream, &key)) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  PyObject* numbers = PyTuple_New(static_cast<Py_ssize_t>(key.count));
  for (size_t i = 0; numbers && i < key.count; i++) {
    PyTuple_SET_ITEM(numbers, i, PyLong_FromLongLong(key.data()[i]));
  }
  PyObject* places = PyDict_New();
  for (Py_ssize_t input : *self->used) {
    PyObject* number = PyLong_FromSsize_t(input);
    PyObject* address = PyLong_FromVoidPtr(addresses[input]);
    if (places && number && address) PyDict_SetItem(places, number, address);
    Py_XDECREF(number);
    Py_XDECREF(address);
  }
  if (PyErr_Occurred()) {
    Py_XDECREF(numbers);
    Py_XDECREF(places);
    return nullptr;
  }
  return Py_BuildValue("(NNK)", numbers, places,
                       (unsigned long long)reinterpret_cast<uintptr_t>(stream));
}

// program.held(*inputs): whether somebody holds the residents of a plan that fits.
PyObject* device_held(PyObject* object, PyObject* const* given, Py_ssize_t count) {
  auto* self = reinterpret_cast<DeviceProgram*>(object);
  if (!count_fits(self, count)) return nullptr;
  std::vector<void*> addresses(count);
  void* stream;
  Key key;
  bool held = false;
  if (make_key(self, given, addresses.data(), &stream, &key)) {
    Handed handed;
    Py_XDECREF(find_plan(self, key, addresses.data(), &handed, &held));
  }
  PyErr_Clear();
  return PyBool_FromLong(held);
}

void drop_plans(DeviceProgram* self, size_t from) {
  std::vector<KnownPlan> dropped(std::make_move_iterator(self->plans->begin() + from),
                                 std::make_move_iterator(self->plans->end()));
  self->plans->resize(from);
  for (KnownPlan& each : dropped) Py_DECREF(each.plan);
}

// program.add(key, plan, spare): use a plan from now on; beyond `most`, spare ones by themselves,
// the least recently used one goes.
PyObject* device_add(PyObject* object, PyObject* arguments) {
  auto* self = reinterpret_cast<DeviceProgram*>(object);
  PyObject *numbers, *plan;
  int spare = 0;
  if (!PyArg_ParseTuple(arguments, "O!O!|p", &PyTuple_Type, &numbers, plan_type, &plan, &spare)) {
    return nullptr;
  }
  if (reinterpret_cast<Plan*>(plan)->inputs != self->inputs) {
    PyErr_SetString(PyExc_ValueError, "the plan is for other inputs");
    return nullptr;
  }
  KnownPlan known{{}, nullptr, spare != 0};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++) {
    known.key.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(numbers, i)));
  }
  if (PyErr_Occurred()) return nullptr;
  known.plan = Py_NewRef(plan);
  self->plans->insert(self->plans->begin(), std::move(known));
  Py_ssize_t count = 0;
  PyObject* gone = nullptr;
  for (auto each = self->plans->begin(); each != self->plans->end(); each++) {
    if (each->spare != (spare != 0) || ++count <= self->most) continue;
    gone = each->plan;
    self->plans->erase(each);
    break;
  }
  Py_XDECREF(gone);
  Py_RETURN_NONE;
}

// program.drop(key): forget the plans of a key; all of them if it is None.
PyObject* device_drop(PyObject* object, PyObject* numbers) {
  auto* self = reinterpret_cast<DeviceProgram*>(object);
  if (numbers == Py_None) {
    drop_plans(self, 0);
    Py_RETURN_NONE;
  }
  if (!PyTuple_Check(numbers)) {
    PyErr_SetString(PyExc_TypeError, "a key is a tuple");
    return nullptr;
  }
  Key key;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++) {
    key.push(PyLong_AsLongLong(PyTuple_GET_ITEM(numbers, i)));
  }
  if (PyErr_Occurred()) return nullptr;
  auto middle = std::stable_partition(self->plans->begin(), self->plans->end(),
                                      [&](const KnownPlan& each) { return !same_key(key, each.key); });
  drop_plans(self, static_cast<size_t>(middle - self->plans->begin()));
  Py_RETURN_NONE;
}

int device_fill(DeviceProgram* self, PyObject* arguments) {
  PyObject *used, *sizes, *capsule, *check;
  int by_stream;
  if (!PyArg_ParseTuple(arguments, "nnlO!O!OOOOO!OpO", &self->inputs, &self->most, &self->device,
                        &PyTuple_Type, &used, &PyTuple_Type, &sizes, &self->slow,
                        &self->get_device, &self->get_stream, &self->data_ptr, &PyTuple_Type,
                        &self->hooks, &capsule, &by_stream, &check) ||
      !take_check(check, &self->check)) {
    return -1;
  }
  self->by_stream = by_stream != 0;
  if (!read_positions(used, 0, self->inputs, self->used)) return -1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); i++) {
    SizeSource source;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(sizes, i), "nn", &source.input, &source.dim)) return -1;
    if (source.input < 0 || source.input >= self->inputs) {
      PyErr_SetString(PyExc_ValueError, "a size is out of range");
      return -1;
    }
    self->sizes->push_back(source);
  }
  self->view = view_of_capsule(capsule);
  return 0;
}

PyObject* device_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  auto* self = reinterpret_cast<DeviceProgram*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = device_call;
  self->specification = Py_NewRef(arguments);
  self->used = new std::vector<Py_ssize_t>;
  self->sizes = new std::vector<SizeSource>;
  self->plans = new std::vector<KnownPlan>;
  if (device_fill(self, arguments) < 0) {
    Py_DECREF(self);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(self);
}

int device_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<DeviceProgram*>(object);
  Py_VISIT(self->specification);
  Py_VISIT(self->last);
  Py_VISIT(self->marks);
  for (const KnownPlan& each : *self->plans) Py_VISIT(each.plan);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

// A cleared program cannot be called: only what is unreachable is cleared.
int device_clear(PyObject* object) {
  auto* self = reinterpret_cast<DeviceProgram*>(object);
  self->inputs = -1;
  drop_plans(self, 0);
  Py_CLEAR(self->last);
  Py_CLEAR(self->marks);
  Py_CLEAR(self->specification);
  return 0;
}

void device_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<DeviceProgram*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  device_clear(object);
  delete self->used;
  delete self->sizes;
  delete self->plans;
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* device_count(PyObject* object, void*) {
  return PyLong_FromSize_t(reinterpret_cast<DeviceProgram*>(object)->plans->size());
}

PyObject* device_residing(PyObject* object, void*) {
  size_t count = 0;
  for (const KnownPlan& each : *reinterpret_cast<DeviceProgram*>(object)->plans) {
    count += !reinterpret_cast<Plan*>(each.plan)->residents->empty();
  }
  return PyLong_FromSize_t(count);
}

PyMethodDef device_methods[] = {
    {"add", device_add, METH_VARARGS, "Use a plan for a key."},
    {"boxed", device_boxed, METH_O, "Run on the inputs in a list, which is emptied."},
    {"drop", device_drop, METH_O, "Forget the plans of a key, or all."},
    {"held", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(device_held)), METH_FASTCALL,
     "Return whether somebody holds the residents of a plan that fits inputs."},
    {"key", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(device_key)), METH_FASTCALL,
     "Return the key of inputs, their addresses and the stream."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef device_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(DeviceProgram, vectorcall), READONLY, nullptr},
    {"last", T_OBJECT, offsetof(DeviceProgram, last), 0, "Inputs of the latest call, or None."},
    {"marks", T_OBJECT, offsetof(DeviceProgram, marks), 0, "Output, attribute, set: put on outputs."},
    {"keep", T_BOOL, offsetof(DeviceProgram, keep), 0, "Whether the inputs of a call are kept."},
    {"hits", T_PYSSIZET, offsetof(DeviceProgram, hits), READONLY, "Calls that a plan served."},
    {"broken", T_PYSSIZET, offsetof(DeviceProgram, broken), READONLY,
     "Graphs that the driver would not tell where memory is."},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef device_properties[] = {
    {"plans", device_count, nullptr, "How many plans there are.", nullptr},
    {"residing", device_residing, nullptr, "How many of them have residents.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot device_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(device_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(device_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(device_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(device_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_methods, device_methods},
    {Py_tp_members, device_members},
    {Py_tp_getset, device_properties},
    {0, nullptr},
};

PyType_Spec device_spec = {
    "fusec.native.DeviceProgram", sizeof(DeviceProgram), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, device_slots};

}  // namespace

// Returns what fusec.call.native.DeviceTypes names, in its order; called once a process, holding
// the interpreter's lock. `check` is the type InputCheck of the other library, whose objects programs
// take: they lie as this text says, which begins as that one does.
extern "C" PyObject* fusec_device_types(PyObject* check) {
  PyObject* driver = PyType_FromSpec(&driver_spec);
  PyObject* plan = PyType_FromSpec(&plan_spec);
  PyObject* device = PyType_FromSpec(&device_spec);
  if (!driver || !plan || !device) return nullptr;
  input_check_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(check));
  driver_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(driver));
  plan_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(plan));
  return Py_BuildValue("(NNN)", driver, plan, device);
}
