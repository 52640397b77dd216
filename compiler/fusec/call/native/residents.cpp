// What a captured graph makes and keeps in its memory from call to call, for a backward graph that
// finds it there: who holds it, and how it is handed out. See tensors.cpp for what these files are.

namespace {

// Tensors over a plan's residents for one call, in their order; every reference is owned.
struct Handed {
  std::vector<PyObject*> tensors;
  Handed() = default;
  Handed(const Handed&) = delete;
  ~Handed() { clear(); }
  void clear() {
    for (PyObject* each : tensors) Py_XDECREF(each);
    tensors.clear();
  }
  void move_to(const Plan* plan, Frame* frame) {
    for (size_t i = 0; i < tensors.size(); i++) {
      frame->tensors[(*plan->residents)[i].slot] = tensors[i];
    }
    tensors.clear();
  }
};

// The Python object of a tensor's storage, and the storage as a number.
bool find_storage(PyObject* tensor, PyObject** storage, PyObject** number) {
  *storage = PyObject_CallMethod(tensor, "untyped_storage", nullptr);
  *number = *storage ? PyObject_GetAttrString(*storage, "_cdata") : nullptr;
  return *number != nullptr;
}

// How many hold a storage: as a tensor or otherwise, and its Python object; -1 with an error set.
// The object counts by itself because it is one holder, however many there are of it.
bool count_holders(const Plan* self, PyObject* storage, PyObject* number, Py_ssize_t* uses,
                   Py_ssize_t* references) {
  *references = static_cast<Py_ssize_t>(Py_REFCNT(storage));
  PyObject* count = PyObject_CallOneArg(self->use_count, number);
  *uses = count ? PyLong_AsSsize_t(count) : -1;
  Py_XDECREF(count);
  return *uses >= 0;
}

bool is_alone(const Plan* self, const Resident& resident) {
  Py_ssize_t uses, references;
  return count_holders(self, resident.storage, resident.number, &uses, &references) &&
         uses == self->alone_uses && references == self->alone_references;
}

// Hand out the residents for the next run, unless somebody still holds what the last one made, or
// is given what is saved (what others do with it then may last longer than they hold it: copies
// on other streams). Whoever has them holds them from here on: no other thread gets them.
bool hand_out(Plan* self, Handed* handed) {
  if (self->handing || self->alone_uses < 0) return false;
  static PyObject* const data = PyUnicode_InternFromString("data");
  self->handing = true;
  PyObject* hooks = PyObject_CallOneArg(self->hooked, Py_True);
  bool ok = hooks == Py_None;
  Py_XDECREF(hooks);
  for (size_t i = 0; ok && i < self->residents->size(); i++) {
    ok = is_alone(self, (*self->residents)[i]);
  }
  handed->tensors.reserve(self->residents->size());
  for (size_t i = 0; ok && i < self->residents->size(); i++) {
    const Resident& resident = (*self->residents)[i];
    PyObject* tensor = PyObject_GetAttr(resident.tensor, data);
    ok = tensor != nullptr;
    if (!ok) break;
    handed->tensors.push_back(tensor);
    DLTensor view;
    bool viewed;
    void* address;
    ok = tensor != resident.tensor &&
         find_address(self->data_ptr, self->view, tensor, &view, &viewed, &address) &&
         address == resident.address;
  }
  self->handing = false;
  if (!ok) {
    PyErr_Clear();
    handed->clear();
  }
  return ok;
}

// plan.foreign(): once it is captured, and before it is used: which residents, by position, are not
// the graph's alone. The plan is of no use if there are any.
PyObject* plan_foreign(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Plan*>(object);
  PyObject* found = PyList_New(0);
  if (!found || self->residents->empty()) return found;
  PyObject *storage = nullptr, *number = nullptr;
  PyObject* tensor = PyObject_CallNoArgs(self->probe);
  Py_ssize_t uses = -1, references = -1;
  bool ok = tensor && find_storage(tensor, &storage, &number) &&
            count_holders(self, storage, number, &uses, &references);
  Py_XDECREF(number);
  Py_XDECREF(storage);
  Py_XDECREF(tensor);
  self->alone_uses = uses;
  self->alone_references = references;
  for (size_t i = 0; ok && i < self->residents->size(); i++) {
    Resident& resident = (*self->residents)[i];
    ok = resident.tensor != nullptr;
    if (!ok) PyErr_SetString(PyExc_RuntimeError, "the plan was not captured");
    if (ok && !resident.number) {
      // What made it may have kept the tensor that it returned: ours is another one.
      PyObject* ours = PyObject_GetAttrString(resident.tensor, "data");
      ok = ours != nullptr;
      if (ok) Py_SETREF(resident.tensor, ours);
      ok = ok && find_storage(ours, &resident.storage, &resident.number);
    }
    if (!ok || is_alone(self, resident)) continue;
    PyObject* position = PyErr_Occurred() ? nullptr : PyLong_FromSize_t(i);
    ok = position && PyList_Append(found, position) == 0;
    Py_XDECREF(position);
  }
  if (!ok || PyList_GET_SIZE(found)) self->alone_uses = -1;
  if (!ok) Py_CLEAR(found);
  return found;
}

// plan.places(): where the residents are.
PyObject* plan_places(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Plan*>(object);
  PyObject* found = PyTuple_New(static_cast<Py_ssize_t>(self->residents->size()));
  for (size_t i = 0; found && i < self->residents->size(); i++) {
    PyObject* address = PyLong_FromVoidPtr((*self->residents)[i].address);
    if (!address) Py_CLEAR(found);
    if (found) PyTuple_SET_ITEM(found, static_cast<Py_ssize_t>(i), address);
  }
  return found;
}

}  // namespace
