// Plan as a Python type: it is made of tuples. See plan.cpp for what it does.

namespace {

bool bad_plan(const char* what) {
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, what);
  return false;
}

bool read_slots(const Plan* self, PyObject* tuple, bool or_none, std::vector<Py_ssize_t>* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i));
    if (slot >= self->slots || slot < (or_none ? -1 : 0) || PyErr_Occurred()) {
      return bad_plan("a slot is out of range");
    }
    out->push_back(slot);
  }
  return true;
}

// A place is (slot, offset), or (-1, number).
bool read_places(const Plan* self, PyObject* tuple, std::vector<Place>* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    Py_ssize_t slot;
    long long offset;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "nL", &slot, &offset)) return false;
    if (slot < -1 || slot >= self->slots) return bad_plan("a place is out of range");
    out->push_back({slot, offset});
  }
  return true;
}

bool read_numbers(PyObject* tuple, std::vector<int64_t>* out) {
  if (!PyTuple_Check(tuple)) return bad_plan("sizes or strides are no tuple");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    out->push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  }
  return !PyErr_Occurred();
}

bool read_call(const Plan* self, PyObject* tuple, Step* step) {
  PyObject *arguments, *names, *outputs, *laid;
  int many;
  if (!PyArg_ParseTuple(tuple, "iOO!OO!O!p", &step->kind, &step->callable, &PyTuple_Type,
                        &arguments, &names, &PyTuple_Type, &outputs, &PyTuple_Type, &laid,
                        &many)) {
    return false;
  }
  step->many = many != 0;
  step->names = names == Py_None ? nullptr : names;
  Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  if (step->names && (!PyTuple_Check(names) || PyTuple_GET_SIZE(names) > count)) {
    return bad_plan("the names of a call are no tuple");
  }
  for (Py_ssize_t i = 0; i < count; i++) {  // an argument is (slot, None), or (-1, object)
    Py_ssize_t slot;
    PyObject* value;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(arguments, i), "nO", &slot, &value)) return false;
    if (slot < -1 || slot >= self->slots) return bad_plan("an argument is out of range");
    step->arguments.push_back({slot, value});
  }
  if (!read_slots(self, outputs, true, &step->outputs)) return false;
  if (PyTuple_GET_SIZE(laid) != PyTuple_GET_SIZE(outputs) ||
      (!step->many && PyTuple_GET_SIZE(outputs) > 1)) {
    return bad_plan("the outputs of a call are not as they should be");
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(laid); i++) {  // None: nobody reads it
    PyObject* each = PyTuple_GET_ITEM(laid, i);
    Laid wanted;
    if (each != Py_None) {
      if (!PyArg_ParseTuple(each, "OOOii", &wanted.shape, &wanted.strides, &wanted.dtype,
                            &wanted.code, &wanted.bits) ||
          !read_numbers(wanted.shape, &wanted.sizes) || !read_numbers(wanted.strides, &wanted.steps)) {
        return false;
      }
      if (wanted.sizes.size() != wanted.steps.size()) return bad_plan("strides are not as sizes are");
    }
    step->laid.push_back(std::move(wanted));
  }
  return true;
}

bool read_step(const Plan* self, PyObject* tuple, Step* step) {
  if (!PyTuple_Check(tuple) || !PyTuple_GET_SIZE(tuple)) return bad_plan("a step is no tuple");
  long kind = PyLong_AsLong(PyTuple_GET_ITEM(tuple, 0));
  PyObject *list, *after;
  unsigned long long function;
  Py_ssize_t bytes;
  switch (kind) {
    case kAllocate:
      if (!PyArg_ParseTuple(tuple, "inOOO", &step->kind, &step->slot, &step->sizes,
                            &step->strides, &step->dtype)) {
        return false;
      }
      if (step->slot < self->inputs || step->slot >= self->slots) {
        return bad_plan("a slot is out of range");
      }
      return true;
    case kLaunch:
      if (!PyArg_ParseTuple(tuple, "iK(III)IIO!O!", &step->kind, &function, &step->grid[0],
                            &step->grid[1], &step->grid[2], &step->block, &step->shared,
                            &PyTuple_Type, &list, &PyTuple_Type, &after)) {
        return false;
      }
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(after); i++) {
        step->after.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(after, i)));
      }
      if (PyErr_Occurred()) return false;
      step->function = reinterpret_cast<void*>(static_cast<uintptr_t>(function));
      if (!step->function || static_cast<size_t>(PyTuple_GET_SIZE(list)) > kMostParameters) {
        return bad_plan("a kernel is not as it should be");
      }
      return read_places(self, list, &step->places);
    case kCopy:
      if (!PyArg_ParseTuple(tuple, "iO!n", &step->kind, &PyTuple_Type, &list, &bytes)) return false;
      if (PyTuple_GET_SIZE(list) != 2 || bytes < 0) return bad_plan("a copy has two places");
      step->bytes = static_cast<size_t>(bytes);
      return read_places(self, list, &step->places);
    case kCall:
      return read_call(self, tuple, step);
    case kFree:
      if (!PyArg_ParseTuple(tuple, "iO!", &step->kind, &PyTuple_Type, &list)) return false;
      return read_slots(self, list, false, &step->outputs);
    default:
      return bad_plan("there is no such step");
  }
}

bool read_steps(const Plan* self, PyObject* tuple, std::vector<Step>* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    Step step;
    if (!read_step(self, PyTuple_GET_ITEM(tuple, i), &step)) return false;
    out->push_back(std::move(step));
  }
  return true;
}

// Residents are (slots, use_count, hooked, probe), or None.
bool read_residents(Plan* self, PyObject* given) {
  if (given == Py_None) return true;
  PyObject* slots;
  if (!PyTuple_Check(given) ||
      !PyArg_ParseTuple(given, "O!OOO", &PyTuple_Type, &slots, &self->use_count, &self->hooked,
                        &self->probe)) {
    return bad_plan("residents are no tuple");
  }
  std::vector<Py_ssize_t> chosen;
  if (!read_slots(self, slots, false, &chosen)) return false;
  for (Py_ssize_t slot : chosen) {
    if (slot < self->inputs) return bad_plan("an input is no resident");
    self->residents->push_back({slot, nullptr, nullptr, nullptr, nullptr});
  }
  return true;
}

bool plan_fill(Plan* self, PyObject* arguments) {
  PyObject *driver, *before, *steps, *results, *loose, *fixed, *capsule, *kept, *residents;
  if (!PyArg_ParseTuple(arguments, "O!nnO!O!O!O!O!OOOOOO", driver_type, &driver, &self->inputs,
                        &self->slots, &PyTuple_Type, &before, &PyTuple_Type, &steps, &PyTuple_Type,
                        &results, &PyTuple_Type, &loose, &PyTuple_Type, &fixed, &self->allocate,
                        &self->data_ptr, &self->expect, &capsule, &kept, &residents)) {
    return false;
  }
  self->driver = reinterpret_cast<Driver*>(driver);
  if (self->inputs < 0 || self->slots < self->inputs) return bad_plan("there are too few slots");
  if (!read_steps(self, before, self->before) || !read_steps(self, steps, self->steps)) {
    return false;
  }
  for (const Step& step : *self->before) {
    if (step.kind != kAllocate) return bad_plan("only memory is made before a graph");
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); i++) {
    Result result;  // (slot, None), (slot, function of it), or (-1, constant)
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(results, i), "nO", &result.slot, &result.object)) {
      return false;
    }
    if (result.slot < -1 || result.slot >= self->slots) return bad_plan("a result is out of range");
    if (result.slot >= 0 && result.object == Py_None) result.object = nullptr;
    self->results->push_back(result);
  }
  std::vector<Py_ssize_t> chosen;
  if (!read_slots(self, loose, false, &chosen)) return false;
  self->loose->assign(self->slots, 0);
  for (Py_ssize_t slot : chosen) (*self->loose)[slot] = 1;
  chosen.clear();
  if (!read_slots(self, fixed, false, &chosen)) return false;
  for (Py_ssize_t slot : chosen) {
    if (slot >= self->inputs) return bad_plan("only an input is where it was");
    self->fixed->push_back({slot, nullptr});
  }
  self->view = view_of_capsule(capsule);
  find_chains(self);
  return read_residents(self, residents);
}

PyObject* plan_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  auto* self = reinterpret_cast<Plan*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->specification = Py_NewRef(arguments);
  self->before = new std::vector<Step>;
  self->steps = new std::vector<Step>;
  self->chains = new std::deque<Chain>;
  self->results = new std::vector<Result>;
  self->loose = new std::vector<char>;
  self->fixed = new std::vector<std::pair<Py_ssize_t, void*>>;
  self->nodes = new std::vector<Node>;
  self->lock = new std::mutex;
  self->residents = new std::vector<Resident>;
  self->alone_uses = -1;
  if (!plan_fill(self, arguments)) {
    Py_DECREF(self);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(self);
}

int plan_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Plan*>(object);
  Py_VISIT(self->specification);
  Py_VISIT(self->replay);
  Py_VISIT(self->owner);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

// No tp_clear, as for Entry: what a plan points to is taken apart by others of a cycle.
void plan_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Plan*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  for (Chain& chain : *self->chains) drop_chain(self->driver, &chain);
  delete self->chains;
  delete self->nodes;
  delete self->before;
  delete self->steps;
  delete self->results;
  delete self->loose;
  delete self->fixed;
  delete self->lock;
  // Whoever holds a resident holds its memory: torch frees a graph's pool when that is free.
  for (Resident& each : *self->residents) {
    Py_XDECREF(each.number);
    Py_XDECREF(each.storage);
    Py_XDECREF(each.tensor);
  }
  delete self->residents;
  Py_CLEAR(self->replay);
  Py_CLEAR(self->owner);
  Py_CLEAR(self->specification);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef plan_methods[] = {
    {"allocate", plan_allocate, METH_NOARGS, "Return memory for a call's outputs."},
    {"capture", plan_capture, METH_VARARGS, "Run on a stream that is being captured."},
    {"captured", plan_captured, METH_VARARGS, "Launch a graph from now on."},
    {"foreign", plan_foreign, METH_NOARGS, "Return which residents are not the graph's alone."},
    {"places", plan_places, METH_NOARGS, "Return where the residents are."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot plan_type_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(plan_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(plan_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(plan_traverse)},
    {Py_tp_methods, plan_methods},
    {0, nullptr},
};

PyType_Spec plan_spec = {"fusec.native.Plan", sizeof(Plan), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, plan_type_slots};

PyTypeObject* plan_type = nullptr;

}  // namespace
