// Calls that find their compiled form. See tensors.cpp for what these files are.

namespace {

struct Dispatcher {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* slow;     // the ordinary path
  PyObject* entries;  // a list, the latest used first
  PyObject* tracing;  // returns None where nobody watches the frames that run
  Py_ssize_t hits;
};

PyTypeObject* entry_type = nullptr;

PyObject* dispatcher_call(PyObject* object, PyObject* const* given, size_t flags,
                          PyObject* keywords) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  Py_ssize_t entries = PyList_GET_SIZE(self->entries);
  if (entries) {
    PyObject* callback = PyObject_CallNoArgs(self->tracing);
    if (!callback) PyErr_Clear();
    bool quiet = callback == Py_None;
    Py_XDECREF(callback);
    for (Py_ssize_t i = 0; quiet && i < PyList_GET_SIZE(self->entries); i++) {
      PyObject* candidate = PyList_GET_ITEM(self->entries, i);
      if (Py_TYPE(candidate) != entry_type) continue;
      // Checks may run Python, which may change the list: this entry is held meanwhile.
      Py_INCREF(candidate);
      auto* entry = reinterpret_cast<Entry*>(candidate);
      Values values;
      if (!fits(entry, given, count, keywords, &values)) {
        Py_DECREF(candidate);
        if (PyErr_Occurred()) return nullptr;
        continue;
      }
      if (i > 0 && i < PyList_GET_SIZE(self->entries) &&
          PyList_GET_ITEM(self->entries, i) == candidate) {
        PyObject* first = PyList_GET_ITEM(self->entries, 0);
        PyList_SET_ITEM(self->entries, 0, candidate);
        PyList_SET_ITEM(self->entries, i, first);
      }
      self->hits++;
      PyObject* result = run(entry, values);
      Py_DECREF(candidate);
      return result;
    }
  }
  return PyObject_Vectorcall(self->slow, given, flags & ~PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
}

PyObject* dispatcher_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject *slow, *tracing;
  if (!PyArg_ParseTuple(arguments, "OO", &slow, &tracing)) return nullptr;
  auto* self = reinterpret_cast<Dispatcher*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = dispatcher_call;
  self->slow = Py_NewRef(slow);
  self->tracing = Py_NewRef(tracing);
  self->entries = PyList_New(0);
  if (!self->entries) {
    Py_DECREF(self);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(self);
}

int dispatcher_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  Py_VISIT(self->slow);
  Py_VISIT(self->entries);
  Py_VISIT(self->tracing);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int dispatcher_clear(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  // What a call reads stays valid: the list is emptied, not dropped.
  if (self->entries) PyList_SetSlice(self->entries, 0, PyList_GET_SIZE(self->entries), nullptr);
  PyObject* slow = self->slow;
  self->slow = Py_NewRef(Py_None);
  Py_XDECREF(slow);
  return 0;
}

void dispatcher_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(self->slow);
  Py_CLEAR(self->entries);
  Py_CLEAR(self->tracing);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef dispatcher_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Dispatcher, vectorcall), READONLY, nullptr},
    {"entries", T_OBJECT, offsetof(Dispatcher, entries), READONLY, "The entries, latest first."},
    {"hits", T_PYSSIZET, offsetof(Dispatcher, hits), READONLY, "Calls that an entry served."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot dispatcher_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(dispatcher_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dispatcher_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(dispatcher_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(dispatcher_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, dispatcher_members},
    {0, nullptr},
};

PyType_Spec dispatcher_spec = {
    "fusec.native.Dispatcher", sizeof(Dispatcher), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, dispatcher_slots};

// --- calling objects of a Python class ---------------------------------------------------------

PyObject* route_name = nullptr;  // "_route"

PyObject* route_call(PyObject* object, PyObject* arguments, PyObject* keywords) {
  PyObject* route = PyObject_GetAttr(object, route_name);
  if (!route) return nullptr;
  PyObject* result;
  if (keywords && PyDict_GET_SIZE(keywords)) {
    result = PyObject_Call(route, arguments, keywords);
  } else {
    result = PyObject_Vectorcall(route, &PyTuple_GET_ITEM(arguments, 0),
                                 static_cast<size_t>(PyTuple_GET_SIZE(arguments)), nullptr);
  }
  Py_DECREF(route);
  return result;
}

// call_by_route(class): calling an object of the class calls what its `_route` is, natively.
//
// The class keeps its own __call__, which does the same: it is what TorchDynamo and everybody else
// sees. Assigning another one undoes this, as it does for any class.
PyObject* call_by_route(PyObject*, PyObject* type) {
  if (!PyType_Check(type) || !(PyType_GetFlags((PyTypeObject*)type) & Py_TPFLAGS_HEAPTYPE)) {
    PyErr_SetString(PyExc_TypeError, "a class written in Python is needed");
    return nullptr;
  }
  reinterpret_cast<PyTypeObject*>(type)->tp_call = route_call;
  Py_RETURN_NONE;
}

PyMethodDef call_by_route_definition = {"call_by_route", call_by_route, METH_O,
                                        "Let calls of the objects of a class go to `_route`."};

}  // namespace

// Returns what fusec.call.native.NativeTypes names, in its order; called once a process, holding
// the interpreter's lock.
extern "C" PyObject* fusec_native_types(void) {
  PyObject* program = PyType_FromSpec(&program_spec);
  PyObject* entry = PyType_FromSpec(&entry_spec);
  PyObject* dispatcher = PyType_FromSpec(&dispatcher_spec);
  PyObject* function = PyCFunction_New(&call_by_route_definition, nullptr);
  PyObject* check = PyType_FromSpec(&input_check_spec);
  PyObject* result_check = PyType_FromSpec(&result_check_spec);
  route_name = PyUnicode_InternFromString("_route");
  if (!program || !entry || !dispatcher || !function || !check || !result_check || !route_name) {
    return nullptr;
  }
  input_check_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(check));
  entry_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(entry));
  return Py_BuildValue("(NNNNNN)", program, entry, dispatcher, function, check, result_check);
}
