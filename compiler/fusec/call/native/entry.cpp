// One compiled form of a function. See tensors.cpp for what these files are.

namespace {

enum LookupMode : int { kIs, kAbsent, kEmpty, kHasCode };

// What becomes of a graph's outputs. `kCode` leaves that, and all else, to the function `fast`.
enum ResultShape : char { kCode = 'c', kOne = 'o', kTuple = 't', kList = 'l', kNothing = 'n' };

struct Condition {  // a callable returns a certain object
  PyObject *function, *argument, *expected;
};

// A dictionary has a certain object, nothing, an empty dictionary, or a function with certain code.
struct Lookup {
  PyObject *dictionary, *key, *expected;
  int mode;
};

struct TypeLookup {  // an object's class is what it was, and so is one of its attributes
  PyObject *object, *type, *name, *expected;
};

struct Cell {
  PyObject *name, *cell;
};

// One step of what sizes must satisfy; see size_guards.py.
enum SizeCode : int { kSizeOf, kConstant, kAdd, kSub, kMul, kFloorDiv, kMod,
                      kEq, kNe, kLt, kLe, kAnd, kOr, kNot };

struct SizeStep {
  int code;
  int64_t first, second;
};

// A value that a graph takes: a parameter, or one of its sizes where `dim` is not negative.
struct Given {
  Py_ssize_t position, dim;
};

struct Entry {
  PyObject_HEAD
  PyObject* specification;
  PyObject *function, *code, *fast, *graph, *prefix, *names, *tensors, *absent, *tree;
  Py_ssize_t positional, positional_only, named_only;
  int more_positional, more_named;
  char shape;  // of the result: see ResultShape
  std::vector<Given>* order;         // values that `graph` takes
  std::vector<Py_ssize_t>* results;  // outputs of `graph` in the result; -1 - i: parameter i
  std::vector<Py_ssize_t>* checked;  // positions of the values that `tensors` checks
  std::vector<Condition>* conditions;
  std::vector<Lookup>* lookups;
  std::vector<TypeLookup>* types;
  std::vector<Cell>* cells;
  std::vector<SizeStep>* sizes;
  size_t depth;  // how many integers `sizes` needs at once
  ViewFunction view;
};

// What a function's parameters are bound to; every value is held.
struct Values {
  PyObject* item[kMaxValues];
  Py_ssize_t count = 0;
  ~Values() {
    for (Py_ssize_t i = 0; i < count; i++) Py_XDECREF(item[i]);
  }
};

bool same_name(PyObject* a, PyObject* b) {
  return a == b || PyUnicode_Compare(a, b) == 0;
}

// Bind a call as Python would. Whatever is unusual (a missing argument, a name given twice) does
// not fit: the ordinary path raises what there is to raise.
bool bind(const Entry* self, PyObject* const* given, Py_ssize_t count, PyObject* keywords,
          Values* out) {
  Py_ssize_t before = PyTuple_GET_SIZE(self->prefix);
  Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  Py_ssize_t parameters = self->positional + self->named_only;
  Py_ssize_t total = parameters + self->more_positional + self->more_named;
  Py_ssize_t supplied = before + count;
  if (total > kMaxValues || (supplied > self->positional && !self->more_positional)) return false;
  for (Py_ssize_t i = 0; i < total; i++) out->item[i] = nullptr;
  out->count = total;
  auto at = [&](Py_ssize_t i) {
    return i < before ? PyTuple_GET_ITEM(self->prefix, i) : given[i - before];
  };
  Py_ssize_t direct = supplied < self->positional ? supplied : self->positional;
  for (Py_ssize_t i = 0; i < direct; i++) out->item[i] = Py_NewRef(at(i));
  Py_ssize_t next = parameters;
  if (self->more_positional) {
    PyObject* rest = PyTuple_New(supplied - direct);
    if (!rest) return false;
    for (Py_ssize_t i = direct; i < supplied; i++) {
      PyTuple_SET_ITEM(rest, i - direct, Py_NewRef(at(i)));
    }
    out->item[next++] = rest;
  }
  PyObject* others = nullptr;
  if (self->more_named) {
    others = PyDict_New();
    if (!others) return false;
    out->item[next] = others;
  }
  for (Py_ssize_t k = 0; k < named; k++) {
    PyObject* name = PyTuple_GET_ITEM(keywords, k);
    PyObject* value = given[count + k];
    Py_ssize_t found = -1;
    for (Py_ssize_t i = self->positional_only; i < parameters && found < 0; i++) {
      if (same_name(PyTuple_GET_ITEM(self->names, i), name)) found = i;
    }
    if (found >= 0) {
      if (out->item[found]) return false;
      out->item[found] = Py_NewRef(value);
    } else if (!others || PyDict_SetItem(others, name, value) < 0) {
      return false;
    }
  }
  PyObject* defaults = PyFunction_GetDefaults(self->function);
  Py_ssize_t have = defaults ? PyTuple_GET_SIZE(defaults) : 0;
  for (Py_ssize_t i = direct; i < self->positional; i++) {
    if (out->item[i]) continue;
    Py_ssize_t from = i - (self->positional - have);
    if (from < 0) return false;
    out->item[i] = Py_NewRef(PyTuple_GET_ITEM(defaults, from));
  }
  PyObject* named_defaults = self->named_only ? PyFunction_GetKwDefaults(self->function) : nullptr;
  for (Py_ssize_t i = self->positional; i < parameters; i++) {
    if (out->item[i]) continue;
    PyObject* value =
        named_defaults && named_defaults != Py_None
            ? PyDict_GetItemWithError(named_defaults, PyTuple_GET_ITEM(self->names, i))
            : nullptr;
    if (!value) return false;
    out->item[i] = Py_NewRef(value);
  }
  return true;
}

bool holds(const Lookup& each) {
  PyObject* value = PyDict_GetItemWithError(each.dictionary, each.key);
  if (!value) return each.mode == kAbsent && !PyErr_Occurred();
  if (each.mode == kIs) return value == each.expected;
  if (each.mode == kHasCode) {
    return PyFunction_Check(value) && PyFunction_GET_CODE(value) == each.expected;
  }
  return each.mode == kEmpty && PyDict_Check(value) && PyDict_GET_SIZE(value) == 0;
}

bool holds(const TypeLookup& each) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(each.object)) != each.type) return false;
  return _PyType_Lookup(Py_TYPE(each.object), each.name) == each.expected;
}

bool holds(const Condition& each) {
  PyObject* value = each.argument == Py_None
                        ? PyObject_CallNoArgs(each.function)
                        : PyObject_CallOneArg(each.function, each.argument);
  bool same = value == each.expected;
  Py_XDECREF(value);
  return same;
}

bool is_true(PyObject* value) {  // takes the reference
  bool result = value == Py_True;
  Py_XDECREF(value);
  return result;
}

// Whether a tensor has none of the attributes that would make TorchDynamo compile it differently.
bool is_unmarked(PyObject* tensor, PyObject* names) {
#if PY_VERSION_HEX < 0x030F0000
  PyObject** dictionary = _PyObject_GetDictPtr(tensor);
  if (dictionary) {
    if (!*dictionary || !PyDict_GET_SIZE(*dictionary)) return true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
      if (PyDict_Contains(*dictionary, PyTuple_GET_ITEM(names, i)) != 0) return false;
    }
    return true;
  }
#endif
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
    if (PyObject_HasAttr(tensor, PyTuple_GET_ITEM(names, i))) return false;
  }
  return true;
}

bool tensors_fit(const Entry* self, const Values& values) {
  PyObject* tensors[kMaxValues + 1];
  Py_ssize_t count = 0;
  for (Py_ssize_t position : *self->checked) tensors[1 + count++] = values.item[position];
  for (Py_ssize_t i = 1; i <= count; i++) {
    if (!is_unmarked(tensors[i], self->absent)) return false;
  }
  return is_true(PyObject_Vectorcall(self->tensors, tensors + 1,
                                     count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

// The size of a tensor's dimension; false if it cannot be told.
bool size_of(const Entry* self, PyObject* tensor, Py_ssize_t dim, int64_t* out) {
  DLTensor view;
  if (!self->view || self->view(tensor, &view) != 0 || dim >= view.ndim || !view.shape) return false;
  *out = view.shape[dim];
  return true;
}

int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

// Whether the sizes satisfy what TorchDynamo assumed of them. Integers here end where Python's do
// not: what overflows does not fit.
bool sizes_fit(const Entry* self, const Values& values) {
  if (self->sizes->empty()) return true;
  int64_t few[32];
  std::vector<int64_t> more;
  int64_t* stack = few;
  if (self->depth > std::size(few)) {
    more.resize(self->depth);
    stack = more.data();
  }
  size_t top = 0;
  for (const SizeStep& step : *self->sizes) {
    if (step.code == kSizeOf) {
      if (!size_of(self, values.item[step.first], step.second, &stack[top++])) return false;
      continue;
    }
    if (step.code == kConstant) {
      stack[top++] = step.first;
      continue;
    }
    if (step.code == kNot) {
      stack[top - 1] = !stack[top - 1];
      continue;
    }
    int64_t b = stack[--top];
    int64_t& a = stack[top - 1];
    switch (step.code) {
      case kAdd: if (__builtin_add_overflow(a, b, &a)) return false; break;
      case kSub: if (__builtin_sub_overflow(a, b, &a)) return false; break;
      case kMul: if (__builtin_mul_overflow(a, b, &a)) return false; break;
      case kFloorDiv:
      case kMod:
        if (b == 0 || b == -1) return false;
        a = step.code == kMod ? a - floor_of(a, b) * b : floor_of(a, b);
        break;
      case kEq: a = a == b; break;
      case kNe: a = a != b; break;
      case kLt: a = a < b; break;
      case kLe: a = a <= b; break;
      case kAnd: a = a && b; break;
      default: a = a || b;
    }
  }
  return stack[0] != 0;
}

// Ask TorchDynamo's own tree of guards.
bool tree_fits(const Entry* self, const Values& values) {
  PyObject* local = PyDict_New();
  if (!local) return false;
  bool ok = true;
  for (Py_ssize_t i = 0; ok && i < values.count; i++) {
    ok = PyDict_SetItem(local, PyTuple_GET_ITEM(self->names, i), values.item[i]) == 0;
  }
  for (const Cell& each : *self->cells) {
    PyObject* value = ok ? PyCell_Get(each.cell) : nullptr;
    if (value) ok = PyDict_SetItem(local, each.name, value) == 0;
    Py_XDECREF(value);
  }
  ok = ok && is_true(PyObject_CallOneArg(self->tree, local));
  Py_DECREF(local);
  return ok;
}

// Whether this entry is what TorchDynamo would run for the call. A check that fails with an error
// does not fit; what is no Exception, such as an interrupt, stays set.
bool fits(const Entry* self, PyObject* const* given, Py_ssize_t count, PyObject* keywords,
          Values* values) {
  bool ok = PyFunction_GetCode(self->function) == self->code &&
            bind(self, given, count, keywords, values);
  for (size_t i = 0; ok && i < self->lookups->size(); i++) ok = holds((*self->lookups)[i]);
  for (size_t i = 0; ok && i < self->types->size(); i++) ok = holds((*self->types)[i]);
  if (ok && self->tensors != Py_None) ok = tensors_fit(self, *values);
  ok = ok && sizes_fit(self, *values);
  for (size_t i = 0; ok && i < self->conditions->size(); i++) ok = holds((*self->conditions)[i]);
  if (ok && self->tree != Py_None) ok = tree_fits(self, *values);
  if (PyErr_Occurred()) {
    if (PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
    return false;
  }
  return ok;
}

// Run what TorchDynamo would run, on parameters that fit.
PyObject* run(const Entry* self, const Values& values) {
  if (self->shape == kCode) {
    return PyObject_Vectorcall(self->fast, values.item, static_cast<size_t>(values.count), nullptr);
  }
  PyObject* given[kMaxValues + 1];
  size_t count = 0;
  PyObject* made[kMaxValues];
  size_t sizes = 0;
  for (const Given& each : *self->order) {
    PyObject* value = values.item[each.position];
    if (each.dim >= 0) {
      int64_t size;
      value = size_of(self, value, each.dim, &size) ? PyLong_FromLongLong(size) : nullptr;
      if (!value) {
        while (sizes) Py_DECREF(made[--sizes]);
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a size is not there");
        return nullptr;
      }
      made[sizes++] = value;
    }
    given[1 + count++] = value;
  }
  PyObject* outputs = PyObject_Vectorcall(self->graph, given + 1,
                                          count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  while (sizes) Py_DECREF(made[--sizes]);
  if (!outputs) return nullptr;
  bool is_list = PyList_CheckExact(outputs);
  if (!is_list && !PyTuple_CheckExact(outputs)) {
    Py_DECREF(outputs);
    return PyErr_Format(PyExc_TypeError, "a graph returned no list");
  }
  Py_ssize_t have = is_list ? PyList_GET_SIZE(outputs) : PyTuple_GET_SIZE(outputs);
  Py_ssize_t wanted = static_cast<Py_ssize_t>(self->results->size());
  PyObject* result = self->shape == kOne       ? nullptr
                     : self->shape == kNothing ? Py_NewRef(Py_None)
                     : self->shape == kTuple   ? PyTuple_New(wanted)
                                               : PyList_New(wanted);
  bool ok = self->shape == kOne || result;
  for (Py_ssize_t i = 0; ok && i < wanted; i++) {
    Py_ssize_t from = (*self->results)[i];
    if (from >= have) {
      PyErr_SetString(PyExc_IndexError, "a graph returned too little");
      ok = false;
      break;
    }
    PyObject* value = from < 0  ? values.item[-1 - from]
                      : is_list ? PyList_GET_ITEM(outputs, from)
                                : PyTuple_GET_ITEM(outputs, from);
    Py_INCREF(value);
    if (self->shape == kOne) {
      result = value;
    } else if (self->shape == kTuple) {
      PyTuple_SET_ITEM(result, i, value);
    } else {
      PyList_SET_ITEM(result, i, value);
    }
  }
  Py_DECREF(outputs);
  if (!ok) Py_CLEAR(result);
  return result;
}

// Read what a graph takes: pairs of a parameter and a dimension, or -1.
bool read_order(PyObject* tuple, Py_ssize_t limit, std::vector<Given>* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    Given each;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "nn", &each.position, &each.dim)) return false;
    if (each.position < 0 || each.position >= limit || i >= kMaxValues) {
      PyErr_SetString(PyExc_ValueError, "a position is out of range");
      return false;
    }
    out->push_back(each);
  }
  return true;
}

// Read a program over sizes, and see that it leaves one value.
bool read_sizes_program(Entry* self, PyObject* tuple, Py_ssize_t limit) {
  Py_ssize_t depth = 0;
  bool ok = true;
  for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(tuple); i++) {
    SizeStep step;
    long long first, second;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "iLL", &step.code, &first, &second)) {
      return false;
    }
    step.first = first;
    step.second = second;
    bool pushes = step.code == kSizeOf || step.code == kConstant;
    ok = step.code >= kSizeOf && step.code <= kNot &&
         (step.code != kSizeOf || (first >= 0 && first < limit && second >= 0));
    ok = ok && (pushes || depth >= (step.code == kNot ? 1 : 2));
    depth += pushes ? 1 : step.code == kNot ? 0 : -1;
    if (static_cast<size_t>(depth) > self->depth) self->depth = static_cast<size_t>(depth);
    self->sizes->push_back(step);
  }
  if (ok && (depth == 1 || self->sizes->empty())) return true;
  PyErr_SetString(PyExc_ValueError, "what sizes must satisfy is no program");
  return false;
}

int entry_fill(Entry* self, PyObject* arguments) {
  PyObject *shape, *order, *results;
  PyObject *checked, *conditions, *lookups, *types, *cells, *sizes, *capsule;
  if (!PyArg_ParseTuple(arguments, "O!O!OO(UO!O!)O!O!nnnppOO!O!OO!O!O!O!O!O", &PyFunction_Type, &self->function,
                        &PyCode_Type, &self->code, &self->fast, &self->graph, &shape, &PyTuple_Type,
                        &order, &PyTuple_Type, &results, &PyTuple_Type, &self->prefix,
                        &PyTuple_Type, &self->names, &self->positional, &self->positional_only,
                        &self->named_only, &self->more_positional, &self->more_named,
                        &self->tensors, &PyTuple_Type, &checked, &PyTuple_Type, &self->absent, &self->tree, &PyTuple_Type,
                        &conditions, &PyTuple_Type, &lookups, &PyTuple_Type, &types, &PyTuple_Type,
                        &cells, &PyTuple_Type, &sizes, &capsule)) {
    return -1;
  }
  self->view = view_of_capsule(capsule);
  Py_ssize_t total = self->positional + self->named_only + self->more_positional + self->more_named;
  if (total != PyTuple_GET_SIZE(self->names) || total > kMaxValues) {
    PyErr_SetString(PyExc_ValueError, "the names are not those of the parameters");
    return -1;
  }
  self->shape = PyUnicode_GET_LENGTH(shape) ? static_cast<char>(PyUnicode_READ_CHAR(shape, 0)) : 0;
  if (!self->shape || !strchr("cotln", self->shape) ||
      (self->shape == kOne && PyTuple_GET_SIZE(results) != 1) ||
      (self->shape == kNothing && PyTuple_GET_SIZE(results) != 0)) {
    PyErr_SetString(PyExc_ValueError, "no such shape of a result");
    return -1;
  }
  if (!read_order(order, total, self->order) || !read_sizes_program(self, sizes, total) ||
      !read_positions(checked, 0, total, self->checked) ||
      !read_positions(results, -total, PY_SSIZE_T_MAX, self->results)) {
    return -1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(conditions); i++) {
    Condition each;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(conditions, i), "OOO", &each.function, &each.argument,
                          &each.expected)) {
      return -1;
    }
    self->conditions->push_back(each);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(lookups); i++) {
    Lookup each;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(lookups, i), "O!OiO", &PyDict_Type, &each.dictionary,
                          &each.key, &each.mode, &each.expected)) {
      return -1;
    }
    self->lookups->push_back(each);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); i++) {
    TypeLookup each;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(types, i), "OO!OO", &each.object, &PyType_Type,
                          &each.type, &each.name, &each.expected)) {
      return -1;
    }
    self->types->push_back(each);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(cells); i++) {
    Cell each;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(cells, i), "OO!", &each.name, &PyCell_Type,
                          &each.cell)) {
      return -1;
    }
    self->cells->push_back(each);
  }
  return 0;
}

PyObject* entry_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  auto* self = reinterpret_cast<Entry*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->specification = Py_NewRef(arguments);
  self->checked = new std::vector<Py_ssize_t>;
  self->order = new std::vector<Given>;
  self->sizes = new std::vector<SizeStep>;
  self->results = new std::vector<Py_ssize_t>;
  self->conditions = new std::vector<Condition>;
  self->lookups = new std::vector<Lookup>;
  self->types = new std::vector<TypeLookup>;
  self->cells = new std::vector<Cell>;
  if (entry_fill(self, arguments) < 0) {
    Py_DECREF(self);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(self);
}

int entry_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<Entry*>(object)->specification);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

// No tp_clear: an entry holds a tuple, which the collector takes apart by the other objects of a
// cycle; an entry never lacks what it points to.
void entry_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Entry*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(self->specification);
  delete self->checked;
  delete self->order;
  delete self->results;
  delete self->conditions;
  delete self->lookups;
  delete self->types;
  delete self->cells;
  delete self->sizes;
  type->tp_free(object);
  Py_DECREF(type);
}

// entry.fits(args, kwargs): for those who want to know without running it.
PyObject* entry_fits(PyObject* object, PyObject* const* given, Py_ssize_t count,
                     PyObject* keywords) {
  Values values;
  bool ok = fits(reinterpret_cast<Entry*>(object), given, count, keywords, &values);
  return PyErr_Occurred() ? nullptr : PyBool_FromLong(ok);
}

// entry.bind(args, kwargs): the values of the parameters; None for a call that does not fit them.
PyObject* entry_bind(PyObject* object, PyObject* const* given, Py_ssize_t count,
                     PyObject* keywords) {
  Values values;
  if (!bind(reinterpret_cast<Entry*>(object), given, count, keywords, &values)) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  PyObject* result = PyTuple_New(values.count);
  for (Py_ssize_t i = 0; result && i < values.count; i++) {
    PyTuple_SET_ITEM(result, i, Py_NewRef(values.item[i]));
  }
  return result;
}

PyMethodDef entry_methods[] = {
    {"bind", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(entry_bind)),
     METH_FASTCALL | METH_KEYWORDS, "Return the values of the parameters; None if they do not fit."},
    {"fits", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(entry_fits)),
     METH_FASTCALL | METH_KEYWORDS, "Return whether the entry serves a call with these arguments."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot entry_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(entry_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(entry_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(entry_traverse)},
    {Py_tp_methods, entry_methods},
    {0, nullptr},
};

PyType_Spec entry_spec = {"fusec.native.Entry", sizeof(Entry), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, entry_slots};

}  // namespace
