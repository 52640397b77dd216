// Whether the inputs of a graph are what its kernels were compiled for: sizes, strides, types and
// devices. Guards see to that before; where somebody goes past them, no kernel may start on memory
// that it was not made for. No guard sees whether what a graph updates shares memory with another
// input. See tensors.cpp for what these files are.

#include <algorithm>

namespace {

constexpr size_t kFewSizes = 32;       // symbolic sizes kept on the stack
constexpr uint8_t kAnyCode = 255;      // of a type that DLPack has no name for

// A size or stride in terms of the symbolic sizes, as a stack machine's program: constants are what
// nearly all of them are.
enum ExprCode : int { kPushNumber, kPushSize, kAddUp, kMultiply, kFloorDivide, kRemainder };

struct ExprStep {
  int code;
  int64_t value;
};

struct Number {
  bool constant = true;
  int64_t value = 0;
  std::vector<ExprStep> steps;
};

struct Wanted {
  bool checked = false;  // a tensor that is used
  uint8_t code = kAnyCode, bits = 0;
  int32_t device_type = 0, device = 0;  // a type of -1: any device
  std::vector<Number> shape, strides;
};

struct Bound {  // where the value of a symbolic size is found: a dimension, or an integer (-1)
  Py_ssize_t input, dim;
  int64_t low, high;
};

struct InputCheck {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* specification;  // keeps alive what the rest points to
  PyObject* refuse;         // looks at all inputs again and raises; or finds nothing wrong
  ViewFunction view;
  std::vector<Wanted>* inputs;
  std::vector<Bound>* sizes;
  std::vector<char>* updated;  // per input: whether the graph changes it; empty where none is
};

PyTypeObject* input_check_type = nullptr;

int64_t floor_divide(int64_t a, int64_t b) {
  int64_t q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

bool number_value(const Number& number, const int64_t* sizes, int64_t* out) {
  if (number.constant) {
    *out = number.value;
    return true;
  }
  int64_t stack[16];
  size_t top = 0;
  for (const ExprStep& step : number.steps) {
    if (step.code == kPushNumber || step.code == kPushSize) {
      if (top == 16) return false;
      stack[top++] = step.code == kPushNumber ? step.value : sizes[step.value];
      continue;
    }
    if (top < 2) return false;
    int64_t right = stack[--top], left = stack[top - 1];
    if (step.code == kAddUp) {
      stack[top - 1] = left + right;
    } else if (step.code == kMultiply) {
      stack[top - 1] = left * right;
    } else {
      if (right <= 0) return false;
      int64_t quotient = floor_divide(left, right);
      stack[top - 1] = step.code == kFloorDivide ? quotient : left - quotient * right;
    }
  }
  *out = stack[0];
  return top == 1;
}

bool fits(const Wanted& wanted, const DLTensor& view, const int64_t* sizes) {
  if (static_cast<size_t>(view.ndim) != wanted.shape.size()) return false;
  if (wanted.code != kAnyCode &&
      (view.dtype.code != wanted.code || view.dtype.bits != wanted.bits)) {
    return false;
  }
  if (wanted.device_type >= 0 &&
      (view.device.type != wanted.device_type || view.device.id != wanted.device)) {
    return false;
  }
  bool empty = false, laid = true;
  for (int32_t i = 0; i < view.ndim; i++) {
    int64_t size, stride;
    if (!number_value(wanted.shape[i], sizes, &size) || view.shape[i] != size) return false;
    empty |= size == 0;
    if (size == 1) continue;  // wherever its second element would be
    laid = laid && number_value(wanted.strides[i], sizes, &stride) && view.strides[i] == stride;
  }
  return laid || empty;
}

// The values of the symbolic sizes in a call.
struct Sizes {
  int64_t few[kFewSizes];
  std::vector<int64_t> more;
  int64_t* values = few;

  // False where one is out of range, or cannot be read.
  bool read(const InputCheck* self, PyObject* const* given, Py_ssize_t count) {
    const std::vector<Bound>& wanted = *self->sizes;
    if (wanted.empty()) return true;
    if (wanted.size() > kFewSizes) {
      more.resize(wanted.size());
      values = more.data();
    }
    for (size_t i = 0; i < wanted.size(); i++) {
      const Bound& source = wanted[i];
      if (source.input >= count) return false;
      if (source.dim < 0) {
        values[i] = PyLong_AsLongLong(given[source.input]);
        if (values[i] == -1 && PyErr_Occurred()) {
          PyErr_Clear();
          return false;
        }
      } else {
        DLTensor view;
        if (!self->view || self->view(given[source.input], &view) != 0) {
          PyErr_Clear();
          return false;
        }
        if (source.dim >= view.ndim) return false;
        values[i] = view.shape[source.dim];
      }
      if (values[i] < source.low || values[i] > source.high) return false;
    }
    return true;
  }
};

bool is_checked(const InputCheck* self, size_t i) {
  return i < self->inputs->size() && (*self->inputs)[i].checked;
}

// The bytes of an input that lie between its first and its last element.
struct Extent {
  const char *begin, *end;
  bool updated;
};

Extent extent_of(const DLTensor& view, bool updated) {
  int64_t last = 0, bytes = (view.dtype.bits * view.dtype.lanes + 7) / 8;
  for (int32_t d = 0; d < view.ndim; d++) {
    if (view.shape[d] == 0) return {nullptr, nullptr, updated};
    last += (view.shape[d] - 1) * view.strides[d];
  }
  const char* begin = static_cast<const char*>(view.data) + view.byte_offset;
  return {begin, begin + (last + 1) * bytes, updated};
}

// Whether no input that the graph changes shares memory with another one: kernels were compiled as
// though each were alone.
bool lies_apart(const InputCheck* self, PyObject* const* given, Py_ssize_t count) {
  if (self->updated->empty()) return true;
  constexpr Py_ssize_t kFew = 8;  // compared one by one: no memory is asked for
  Extent few[kFew];
  std::vector<Extent> many(count > kFew ? count : 0);
  Extent* all = count > kFew ? many.data() : few;
  Py_ssize_t known = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!is_checked(self, i)) continue;
    DLTensor view;
    if (!self->view || self->view(given[i], &view) != 0) {
      PyErr_Clear();
      return false;
    }
    Extent extent = extent_of(view, (*self->updated)[i]);
    if (extent.begin) all[known++] = extent;
  }
  if (count <= kFew) {
    for (Py_ssize_t i = 0; i < known; i++) {
      for (Py_ssize_t j = 0; j < i; j++) {
        bool changes = all[i].updated || all[j].updated;
        if (changes && all[i].begin < all[j].end && all[j].begin < all[i].end) return false;
      }
    }
    return true;
  }
  std::sort(all, all + known, [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  const char *end = nullptr, *end_of_updated = nullptr;
  for (Py_ssize_t i = 0; i < known; i++) {
    const Extent& each = all[i];
    if (each.begin < (each.updated ? end : end_of_updated)) return false;
    end = std::max(end, each.end);
    if (each.updated) end_of_updated = std::max(end_of_updated, each.end);
  }
  return true;
}

// Let Python look at the inputs, which has the words; false, with an error set, if they do not fit.
bool refuse_inputs(const InputCheck* self, PyObject* const* given, Py_ssize_t count) {
  PyObject* inputs = PyTuple_New(count);
  if (!inputs) return false;
  for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(inputs, i, Py_NewRef(given[i]));
  PyObject* nothing = PyObject_CallOneArg(self->refuse, inputs);
  Py_DECREF(inputs);
  Py_XDECREF(nothing);
  return nothing != nullptr;
}

// Whether all inputs fit; false, with an error set, if not.
bool check_inputs(const InputCheck* self, PyObject* const* given, Py_ssize_t count) {
  Sizes sizes;
  bool ok = static_cast<size_t>(count) == self->inputs->size() && sizes.read(self, given, count);
  for (Py_ssize_t i = 0; ok && i < count; i++) {
    if (!is_checked(self, i)) continue;
    DLTensor view;
    ok = self->view && self->view(given[i], &view) == 0 &&
         fits((*self->inputs)[i], view, sizes.values);
    PyErr_Clear();
  }
  ok = ok && lies_apart(self, given, count);
  return ok || refuse_inputs(self, given, count);
}

PyObject* input_check_call(PyObject* object, PyObject* const* given, size_t flags, PyObject*) {
  if (PyVectorcall_NARGS(flags) != 1 || !PyList_Check(given[0])) {
    PyErr_SetString(PyExc_TypeError, "the inputs must be in a list");
    return nullptr;
  }
  PyObject** items = reinterpret_cast<PyListObject*>(given[0])->ob_item;
  auto* self = reinterpret_cast<InputCheck*>(object);
  if (!check_inputs(self, items, PyList_GET_SIZE(given[0]))) return nullptr;
  Py_RETURN_NONE;
}

bool parse_numbers(PyObject* tuple, size_t sizes, std::vector<Number>* out) {
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "sizes and strides must be in tuples");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    PyObject* given = PyTuple_GET_ITEM(tuple, i);
    Number number;
    if (PyLong_Check(given)) {
      number.value = PyLong_AsLongLong(given);
      if (number.value == -1 && PyErr_Occurred()) return false;
    } else {
      number.constant = false;
      for (Py_ssize_t j = 0; j < PyTuple_Size(given); j++) {
        int code;
        long long value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, j), "iL", &code, &value)) return false;
        bool known = code >= kPushNumber && code <= kRemainder;
        if (!known || (code == kPushSize && (value < 0 || static_cast<size_t>(value) >= sizes))) {
          PyErr_SetString(PyExc_ValueError, "a size is not as it should be");
          return false;
        }
        number.steps.push_back({code, value});
      }
      if (PyErr_Occurred()) return false;
    }
    out->push_back(std::move(number));
  }
  return true;
}

int input_check_fill(InputCheck* self, PyObject* arguments) {
  PyObject *inputs, *sizes, *updated, *capsule;
  if (!PyArg_ParseTuple(arguments, "O!O!O!OO", &PyTuple_Type, &inputs, &PyTuple_Type, &sizes,
                        &PyTuple_Type, &updated, &self->refuse, &capsule)) {
    return -1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(updated); i++) {
    Py_ssize_t input = PyLong_AsSsize_t(PyTuple_GET_ITEM(updated, i));
    if (input < 0 || input >= PyTuple_GET_SIZE(inputs)) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "there is no such input");
      return -1;
    }
    self->updated->resize(PyTuple_GET_SIZE(inputs));
    (*self->updated)[input] = true;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); i++) {
    Bound bound;
    long long low, high;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(sizes, i), "nnLL", &bound.input, &bound.dim, &low,
                          &high)) {
      return -1;
    }
    bound.low = low;
    bound.high = high;
    self->sizes->push_back(bound);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); i++) {
    PyObject* given = PyTuple_GET_ITEM(inputs, i);
    Wanted wanted;
    if (given != Py_None) {
      PyObject *shape, *strides;
      int code, bits, device_type, device;
      if (!PyArg_ParseTuple(given, "OOiiii", &shape, &strides, &code, &bits, &device_type,
                            &device) ||
          !parse_numbers(shape, self->sizes->size(), &wanted.shape) ||
          !parse_numbers(strides, self->sizes->size(), &wanted.strides)) {
        return -1;
      }
      if (wanted.shape.size() != wanted.strides.size()) {
        PyErr_SetString(PyExc_ValueError, "there must be as many strides as sizes");
        return -1;
      }
      wanted.checked = true;
      wanted.code = static_cast<uint8_t>(code);
      wanted.bits = static_cast<uint8_t>(bits);
      wanted.device_type = device_type;
      wanted.device = device;
    }
    self->inputs->push_back(std::move(wanted));
  }
  self->view = view_of_capsule(capsule);
  return 0;
}

PyObject* input_check_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  auto* self = reinterpret_cast<InputCheck*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = input_check_call;
  self->specification = Py_NewRef(arguments);
  self->inputs = new std::vector<Wanted>;
  self->sizes = new std::vector<Bound>;
  self->updated = new std::vector<char>;
  if (input_check_fill(self, arguments) < 0) {
    Py_DECREF(self);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(self);
}

int input_check_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<InputCheck*>(object)->specification);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

void input_check_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<InputCheck*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(self->specification);
  delete self->inputs;
  delete self->sizes;
  delete self->updated;
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef input_check_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(InputCheck, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot input_check_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(input_check_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(input_check_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(input_check_traverse)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, input_check_members},
    {0, nullptr},
};

PyType_Spec input_check_spec = {
    "fusec.native.InputCheck", sizeof(InputCheck), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, input_check_slots};

// What was given as a check: null for None; false, with an error set, if it is something else.
bool take_check(PyObject* given, InputCheck** out) {
  *out = nullptr;
  if (given == Py_None) return true;
  if (!PyObject_TypeCheck(given, input_check_type)) {
    PyErr_SetString(PyExc_TypeError, "that is no check of inputs");
    return false;
  }
  *out = reinterpret_cast<InputCheck*>(given);
  return true;
}

}  // namespace
