// Whether an operator's result is what the kernels after it were told. See tensors.cpp for what
// these files are.

namespace {

struct NamedType {
  PyObject* dtype;
  int code, bits;
};

struct ResultCheck {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* specification;  // keeps alive what the rest points to
  PyObject* slow;           // the same by Python: copies what lies otherwise, raises what is wrong
  ViewFunction view;
  std::vector<NamedType>* types;
};

bool numbers_match(PyObject* tuple, const int64_t* found, int32_t count, const int64_t* sizes) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) return false;
  for (int32_t i = 0; i < count; i++) {
    if (sizes && sizes[i] == 1) continue;  // a stride that leads nowhere
    if (PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)) != found[i]) return false;
  }
  return true;
}

// check(tensor, shape, strides, dtype or None, what): the tensor, laid out as it should be.
PyObject* result_check_call(PyObject* object, PyObject* const* given, size_t flags,
                            PyObject* names) {
  auto* self = reinterpret_cast<ResultCheck*>(object);
  DLTensor view;
  if (PyVectorcall_NARGS(flags) >= 4 && self->view && self->view(given[0], &view) == 0 &&
      numbers_match(given[1], view.shape, view.ndim, nullptr) &&
      numbers_match(given[2], view.strides, view.ndim, view.shape)) {
    if (given[3] == Py_None) return Py_NewRef(given[0]);
    for (const NamedType& type : *self->types) {
      if (type.dtype != given[3]) continue;
      bool same = type.code == kAnyCode || type.code == view.dtype.code;
      if (same && type.bits == view.dtype.bits) return Py_NewRef(given[0]);
      break;
    }
  }
  PyErr_Clear();
  return PyObject_Vectorcall(self->slow, given, flags, names);
}

PyObject* result_check_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  auto* self = reinterpret_cast<ResultCheck*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = result_check_call;
  self->specification = Py_NewRef(arguments);
  self->types = new std::vector<NamedType>;
  PyObject *types, *capsule;
  bool ok = PyArg_ParseTuple(arguments, "OO!O", &self->slow, &PyTuple_Type, &types, &capsule);
  for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(types); i++) {
    NamedType named;
    ok = PyArg_ParseTuple(PyTuple_GET_ITEM(types, i), "Oii", &named.dtype, &named.code, &named.bits);
    self->types->push_back(named);
  }
  if (!ok) {
    Py_DECREF(self);
    return nullptr;
  }
  self->view = view_of_capsule(capsule);
  return reinterpret_cast<PyObject*>(self);
}

int result_check_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<ResultCheck*>(object)->specification);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

void result_check_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<ResultCheck*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(self->specification);
  delete self->types;
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef result_check_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ResultCheck, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot result_check_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(result_check_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(result_check_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(result_check_traverse)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, result_check_members},
    {0, nullptr},
};

PyType_Spec result_check_spec = {
    "fusec.native.ResultCheck", sizeof(ResultCheck), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, result_check_slots};

}  // namespace
