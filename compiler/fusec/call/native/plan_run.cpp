// Running a plan: step by step, or as the CUDA graph that was captured of it. See tensors.cpp for
// what these files are.

namespace {

bool run_steps(Plan* self, const std::vector<Step>& steps, Frame* frame, void* stream,
               bool capturing) {
  bool asked = false, chaining = false;
  for (size_t i = 0; i < steps.size(); i++) {
    const Step& step = steps[i];
    bool ok = true;
    if (step.kind == kAllocate) {
      ok = allocate_slot(self, step, frame);
    } else if (step.kind == kCall) {
      ok = call_operator(self, step, frame);
    } else if (step.kind == kFree) {
      for (Py_ssize_t slot : step.outputs) Py_CLEAR(frame->tensors[slot]);
    } else if (capturing) {
      int error = start(self->driver, step, *frame, stream);
      if (error) raise_driver(self->driver, "launching a kernel", error);
      ok = !error && note_node(self, step, *frame, stream);
    } else {
      // The driver waits where its queue is full: other threads run meanwhile.
      if (!std::exchange(asked, true)) chaining = may_chain(self, stream);
      size_t end = i + 1;
      while (end < steps.size() && (steps[end].kind == kLaunch || steps[end].kind == kCopy)) end++;
      int error = 0;
      PyThreadState* thread = PyEval_SaveThread();
      while (i < end && !error) {
        Chain* chain = chaining ? steps[i].chain : nullptr;
        if (chain) {
          error = run_chain(self, chain, i, *frame, stream);
          i = chain->end;
        } else {
          error = start(self->driver, steps[i++], *frame, stream);
        }
      }
      PyEval_RestoreThread(thread);
      i--;
      if (error) raise_driver(self->driver, "launching a kernel", error);
      ok = !error;
    }
    if (!ok) return false;
  }
  return true;
}

// Tell a node where this call's memory is; what is the graph's own stays where it was.
int tell_node(const Plan* self, Node* node, const Frame& frame, void* context) {
  int64_t values[kMostParameters];
  for (size_t i = 0; i < node->values.size(); i++) {
    const Place& place = node->step->places[i];
    bool varies = place.slot >= 0 && (*self->loose)[place.slot];
    values[i] = varies ? value_of(place, frame) : node->values[i];
  }
  return update_node(self->driver, self->graph, node, values, context);
}

// Launch the captured graph on this call's memory. Telling it and launching it are one thing: a
// second thread waits, without holding Python's lock.
bool replay_graph(Plan* self, const Frame& frame, void* stream) {
  bool ok = true;
  int error = 0;
  PyThreadState* thread = PyEval_SaveThread();
  self->lock->lock();
  void* context = nullptr;
  self->driver->current_context(&context);
  for (Node& node : *self->nodes) {
    error = tell_node(self, &node, frame, context);
    if (error) break;
  }
  if (error) self->broken = true;
  if (!error && !self->replay) error = self->driver->launch_graph(self->graph, stream);
  PyEval_RestoreThread(thread);
  if (!error && self->replay) {
    PyObject* nothing = PyObject_CallNoArgs(self->replay);
    ok = nothing != nullptr;
    Py_XDECREF(nothing);
  }
  self->lock->unlock();
  if (error) raise_driver(self->driver, self->broken ? "updating a graph" : "a graph", error);
  return ok && !error;
}

PyObject* collect_results(const Plan* self, const Frame& frame) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(self->results->size()));
  for (size_t i = 0; list && i < self->results->size(); i++) {
    const Result& result = (*self->results)[i];
    PyObject* value = result.object;
    if (result.slot < 0) {
      Py_INCREF(value);
    } else {
      value = frame.tensors[result.slot];
      if (!value) {
        PyErr_SetString(PyExc_RuntimeError, "an output is not there");
      } else if (result.object) {
        value = PyObject_CallOneArg(result.object, value);
      } else {
        Py_INCREF(value);
      }
    }
    if (!value) {
      Py_CLEAR(list);
      break;
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), value);
  }
  return list;
}

// Run on a frame whose inputs are there, with their addresses.
PyObject* plan_run(Plan* self, Frame* frame, void* stream) {
  if (!run_steps(self, *self->before, frame, stream, false)) return nullptr;
  if (self->graph) {
    if (!replay_graph(self, *frame, stream)) return nullptr;
  } else if (!run_steps(self, *self->steps, frame, stream, false)) {
    return nullptr;
  }
  return collect_results(self, *frame);
}

bool plan_fits(const Plan* self, void* const* addresses) {
  for (const auto& [slot, address] : *self->fixed) {
    if (addresses[slot] != address) return false;
  }
  return !self->broken;
}

// plan.capture(stream, inputs): run the steps on a stream that is being captured; note what became
// of them. The memory of the outputs is allocated before, by plan.allocate().
PyObject* plan_capture(PyObject* object, PyObject* arguments) {
  auto* self = reinterpret_cast<Plan*>(object);
  unsigned long long stream;
  PyObject *inputs, *fresh;
  if (!PyArg_ParseTuple(arguments, "KO!O!", &stream, &PyTuple_Type, &inputs, &PyTuple_Type,
                        &fresh)) {
    return nullptr;
  }
  if (PyTuple_GET_SIZE(inputs) != self->inputs || self->graph ||
      static_cast<size_t>(PyTuple_GET_SIZE(fresh)) != self->before->size()) {
    PyErr_SetString(PyExc_ValueError, "these are not the tensors of the plan");
    return nullptr;
  }
  Frame frame(self->slots);
  auto put = [&](Py_ssize_t slot, PyObject* tensor) {
    frame.tensors[slot] = Py_NewRef(tensor);
    if (PyLong_Check(tensor) || tensor == Py_None) return true;
    DLTensor view;
    bool viewed;
    return find_address(self->data_ptr, self->view, tensor, &view, &viewed,
                        &frame.addresses[slot]);
  };
  bool ok = true;
  for (Py_ssize_t i = 0; ok && i < self->inputs; i++) ok = put(i, PyTuple_GET_ITEM(inputs, i));
  for (size_t i = 0; ok && i < self->before->size(); i++) {
    ok = put((*self->before)[i].slot, PyTuple_GET_ITEM(fresh, static_cast<Py_ssize_t>(i)));
  }
  self->nodes->clear();
  ok = ok && run_steps(self, *self->steps, &frame, reinterpret_cast<void*>(stream), true);
  if (!ok) return nullptr;
  for (auto& [slot, address] : *self->fixed) address = frame.addresses[slot];
  for (Resident& resident : *self->residents) {
    if (!frame.tensors[resident.slot]) {
      PyErr_SetString(PyExc_RuntimeError, "an output is not there");
      return nullptr;
    }
    Py_XSETREF(resident.tensor, Py_NewRef(frame.tensors[resident.slot]));
    resident.address = frame.addresses[resident.slot];
  }
  Py_RETURN_NONE;
}

// plan.allocate(): the memory that a call gets anew, a tensor each.
PyObject* plan_allocate(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Plan*>(object);
  Frame frame(self->slots);
  PyObject* result = PyTuple_New(static_cast<Py_ssize_t>(self->before->size()));
  for (size_t i = 0; result && i < self->before->size(); i++) {
    const Step& step = (*self->before)[i];
    if (!allocate_slot(self, step, &frame)) {
      Py_CLEAR(result);
      break;
    }
    PyTuple_SET_ITEM(result, static_cast<Py_ssize_t>(i), Py_NewRef(frame.tensors[step.slot]));
  }
  return result;
}

// plan.captured(graph, replay, owner): from now on launch the graph; by `replay`, if not None.
PyObject* plan_captured(PyObject* object, PyObject* arguments) {
  auto* self = reinterpret_cast<Plan*>(object);
  unsigned long long graph;
  PyObject *replay, *owner;
  if (!PyArg_ParseTuple(arguments, "KOO", &graph, &replay, &owner)) return nullptr;
  Py_XSETREF(self->replay, replay == Py_None ? nullptr : Py_NewRef(replay));
  Py_XSETREF(self->owner, Py_NewRef(owner));
  self->graph = reinterpret_cast<void*>(static_cast<uintptr_t>(graph));
  Py_RETURN_NONE;
}

}  // namespace
