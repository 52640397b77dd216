// What a call of compiled code costs is Python's bookkeeping: this file does that part natively.
//
// Program    allocates outputs and runs the kernels of one graph, one after the other.
// Entry      one compiled form of a function: what must hold for it, and what to run then.
// Dispatcher finds the entry that fits a call, or leaves the call to the ordinary path.
//
// It knows Python's C interface and the DLPack standard, nothing of torch: torch's own checks come
// in as callables, so that the same text serves every release.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace {

constexpr Py_ssize_t kMaxValues = 64;     // parameters of a function; tensors kept on the stack
constexpr size_t kStackScratch = 16384;   // temporaries up to here need no allocation
constexpr size_t kAlignment = 64;
constexpr size_t kMaxKernelArguments = 64;

// --- DLPack: the one way to a tensor's memory that is a standard ------------------------------

struct DLTensor {
  void* data;
  struct { int32_t type, id; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct DLPackExchange {
  struct { uint32_t major, minor; void* previous; } header;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*view)(void* object, DLTensor* out);
  void* stream;
};

// --- calling a kernel: every parameter is a pointer or an int64 --------------------------------

template <size_t... I>
int call_with(void* address, const int64_t* values, std::index_sequence<I...>) {
  using Function = int (*)(decltype((void)I, int64_t{})...);
  return reinterpret_cast<Function>(address)(values[I]...);
}

template <size_t N>
int call_exactly(void* address, const int64_t* values) {
  return call_with(address, values, std::make_index_sequence<N>{});
}

using Caller = int (*)(void*, const int64_t*);

template <size_t... N>
Caller caller_of(size_t count, std::index_sequence<N...>) {
  static const Caller table[] = {call_exactly<N>...};
  return table[count];
}

// --- Program -----------------------------------------------------------------------------------

enum ArgumentKind : int { kSlot, kScratch, kNumber, kSize };

struct Argument {
  int kind;
  int64_t value;  // slot; offset in the scratch memory; the number itself; which symbolic size
};

struct Kernel {
  void* address;
  Caller caller;
  std::vector<Argument> arguments;
  size_t sizes;  // how many symbolic sizes there must be
};

struct Allocation {
  PyObject *sizes, *strides, *dtype;
};

struct Program {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* specification;  // keeps alive what the rest points to
  PyObject* last;           // inputs of the latest call, where they are kept
  char keep;
  bool release;
  Py_ssize_t inputs;
  size_t scratch;
  // `shapes` is None, or yields of the inputs: a tuple of the symbolic sizes, then sizes and strides
  // of each allocation.
  PyObject *allocate, *threads, *data_ptr, *failed, *shapes;
  int (*view)(void*, DLTensor*);
  std::vector<Kernel>* kernels;
  std::vector<Allocation>* allocations;
  std::vector<PyObject*>* constants;  // per output: a value, or null for a slot
  std::vector<Py_ssize_t>* outputs;
  std::vector<char>* used;  // per input: whether a kernel takes its memory
};

// The address of a tensor's first element; -1 in `ok` if there is none.
void* address_of(Program* self, PyObject* tensor, bool* ok) {
  if (self->view) {
    DLTensor view;
    if (self->view(tensor, &view) == 0) {
      *ok = true;
      return static_cast<char*>(view.data) + view.byte_offset;
    }
    PyErr_Clear();
  }
  PyObject* number = PyObject_CallOneArg(self->data_ptr, tensor);
  *ok = number != nullptr;
  if (!number) return nullptr;
  void* address = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  if (!address && PyErr_Occurred()) *ok = false;
  return address;
}

// Take apart what `shapes` returned; false, with an error set, if it is not what it should be.
bool read_sizes(PyObject* shapes, size_t made, std::vector<int64_t>* out) {
  bool ok = PyTuple_Check(shapes) && static_cast<size_t>(PyTuple_GET_SIZE(shapes)) == made + 1 &&
            PyTuple_Check(PyTuple_GET_ITEM(shapes, 0));
  for (size_t i = 0; ok && i < made; i++) {
    PyObject* shape = PyTuple_GET_ITEM(shapes, 1 + i);
    ok = PyTuple_Check(shape) && PyTuple_GET_SIZE(shape) == 2;
  }
  if (!ok) {
    PyErr_SetString(PyExc_TypeError, "the shapes are not as they should be");
    return false;
  }
  PyObject* sizes = PyTuple_GET_ITEM(shapes, 0);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); i++) {
    int64_t size = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, i));
    if (size == -1 && PyErr_Occurred()) return false;
    out->push_back(size);
  }
  return true;
}

PyObject* program_run(Program* self, PyObject* const* given, Py_ssize_t count) {
  if (count != self->inputs) {
    return PyErr_Format(PyExc_TypeError, "the program takes %zd inputs, not %zd", self->inputs,
                        count);
  }
  if (self->keep) {
    PyObject* kept = PyTuple_New(count);
    if (!kept) return nullptr;
    for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(kept, i, Py_NewRef(given[i]));
    PyObject* before = self->last;
    self->last = kept;
    Py_XDECREF(before);
  }
  size_t made = self->allocations->size();
  size_t slots = static_cast<size_t>(count) + made;
  void* few_addresses[kMaxValues];
  PyObject* few_tensors[kMaxValues];
  std::vector<void*> more_addresses;
  std::vector<PyObject*> more_tensors;
  void** addresses = few_addresses;
  PyObject** tensors = few_tensors;
  if (slots > static_cast<size_t>(kMaxValues)) {
    more_addresses.resize(slots);
    more_tensors.resize(slots);
    addresses = more_addresses.data();
    tensors = more_tensors.data();
  }
  size_t filled = 0;  // allocated so far
  PyObject* shapes = nullptr;
  auto fail = [&]() -> PyObject* {
    for (size_t i = 0; i < filled; i++) Py_DECREF(tensors[count + i]);
    Py_XDECREF(shapes);
    return nullptr;
  };
  std::vector<int64_t> integers;
  if (self->shapes != Py_None) {
    shapes = PyObject_Vectorcall(self->shapes, given, count, nullptr);
    if (!shapes || !read_sizes(shapes, made, &integers)) return fail();
    for (const Kernel& kernel : *self->kernels) {
      if (kernel.sizes > integers.size()) {
        PyErr_SetString(PyExc_ValueError, "there are fewer sizes than the kernels take");
        return fail();
      }
    }
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    bool ok = true;
    tensors[i] = given[i];
    addresses[i] = (*self->used)[i] ? address_of(self, given[i], &ok) : nullptr;
    if (!ok) return fail();
  }
  for (size_t i = 0; i < made; i++) {
    const Allocation& wanted = (*self->allocations)[i];
    PyObject* arguments[] = {nullptr, wanted.sizes, wanted.strides, wanted.dtype};
    if (shapes) {
      PyObject* shape = PyTuple_GET_ITEM(shapes, 1 + i);
      arguments[1] = PyTuple_GET_ITEM(shape, 0);
      arguments[2] = PyTuple_GET_ITEM(shape, 1);
    }
    PyObject* tensor = PyObject_Vectorcall(self->allocate, arguments + 1,
                                           3 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (!tensor) return fail();
    tensors[count + i] = tensor;
    filled++;
    bool ok;
    addresses[count + i] = address_of(self, tensor, &ok);
    if (!ok) return fail();
  }
  PyObject* number = PyObject_CallNoArgs(self->threads);
  if (!number) return fail();
  int64_t threads = PyLong_AsLongLong(number);
  Py_DECREF(number);
  if (threads == -1 && PyErr_Occurred()) return fail();

  alignas(kAlignment) char stack_scratch[kStackScratch];
  char* scratch = stack_scratch;
  if (self->scratch > kStackScratch) {
    size_t rounded = (self->scratch + kAlignment - 1) / kAlignment * kAlignment;
    scratch = static_cast<char*>(aligned_alloc(kAlignment, rounded));
    if (!scratch) {
      PyErr_NoMemory();
      return fail();
    }
  }
  int status = 0;
  size_t which = 0;
  int64_t values[kMaxKernelArguments];
  PyThreadState* thread = self->release ? PyEval_SaveThread() : nullptr;
  for (; which < self->kernels->size(); which++) {
    const Kernel& kernel = (*self->kernels)[which];
    size_t n = 0;
    for (const Argument& argument : kernel.arguments) {
      switch (argument.kind) {
        case kSlot:
          values[n++] = reinterpret_cast<int64_t>(addresses[argument.value]);
          break;
        case kScratch:
          values[n++] = reinterpret_cast<int64_t>(scratch + argument.value);
          break;
        case kNumber:
          values[n++] = argument.value;
          break;
        default:
          values[n++] = integers[argument.value];
      }
    }
    values[n] = threads;
    status = kernel.caller(kernel.address, values);
    if (status) break;
  }
  if (thread) PyEval_RestoreThread(thread);
  if (scratch != stack_scratch) free(scratch);
  if (status) {
    PyObject* nothing = PyObject_CallFunction(self->failed, "ni", (Py_ssize_t)which, status);
    Py_XDECREF(nothing);
    if (nothing) PyErr_SetString(PyExc_RuntimeError, "a kernel failed");
    return fail();
  }
  size_t results = self->outputs->size();
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(results));
  if (!list) return fail();
  for (size_t i = 0; i < results; i++) {
    PyObject* constant = (*self->constants)[i];
    PyObject* value = constant ? constant : tensors[(*self->outputs)[i]];
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), Py_NewRef(value));
  }
  fail();  // drops our own references
  return list;
}

PyObject* program_call(PyObject* object, PyObject* const* given, size_t flags, PyObject* names) {
  if (names && PyTuple_GET_SIZE(names)) {
    PyErr_SetString(PyExc_TypeError, "the program takes no names");
    return nullptr;
  }
  return program_run(reinterpret_cast<Program*>(object), given, PyVectorcall_NARGS(flags));
}

// The calling convention of AOTAutograd: the inputs in a list, which is emptied.
PyObject* program_boxed(PyObject* object, PyObject* list) {
  if (!PyList_Check(list)) {
    PyErr_SetString(PyExc_TypeError, "the inputs must be in a list");
    return nullptr;
  }
  PyObject* given = PyList_AsTuple(list);
  if (!given) return nullptr;
  PyObject* result = nullptr;
  if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) == 0) {
    result = program_run(reinterpret_cast<Program*>(object), &PyTuple_GET_ITEM(given, 0),
                         PyTuple_GET_SIZE(given));
  }
  Py_DECREF(given);
  return result;
}

// Launch another build of a kernel from now on.
PyObject* program_link(PyObject* object, PyObject* arguments) {
  Py_ssize_t which;
  unsigned long long address;
  if (!PyArg_ParseTuple(arguments, "nK", &which, &address)) return nullptr;
  auto& kernels = *reinterpret_cast<Program*>(object)->kernels;
  if (which < 0 || which >= static_cast<Py_ssize_t>(kernels.size()) || !address) {
    PyErr_SetString(PyExc_IndexError, "there is no such kernel");
    return nullptr;
  }
  kernels[which].address = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  Py_RETURN_NONE;
}

int program_fill(Program* self, PyObject* arguments) {
  PyObject *kernels, *allocations, *outputs, *capsule;
  unsigned long long scratch;
  int release;
  if (!PyArg_ParseTuple(arguments, "nO!O!O!KOOOOOOp", &self->inputs, &PyTuple_Type, &kernels,
                        &PyTuple_Type, &allocations, &PyTuple_Type, &outputs, &scratch,
                        &self->allocate, &self->threads, &self->data_ptr, &self->failed,
                        &self->shapes, &capsule, &release)) {
    return -1;
  }
  self->scratch = scratch;
  self->release = release != 0;
  self->used->assign(self->inputs, 0);
  Py_ssize_t slots = self->inputs + PyTuple_GET_SIZE(allocations);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kernels); i++) {
    unsigned long long address;
    PyObject* given;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(kernels, i), "KO!", &address, &PyTuple_Type, &given)) {
      return -1;
    }
    Kernel kernel{reinterpret_cast<void*>(static_cast<uintptr_t>(address)), nullptr, {}, 0};
    size_t count = static_cast<size_t>(PyTuple_GET_SIZE(given));
    if (count + 1 > kMaxKernelArguments) {
      PyErr_SetString(PyExc_ValueError, "a kernel has too many arguments");
      return -1;
    }
    for (size_t j = 0; j < count; j++) {
      int kind;
      long long value;
      if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, j), "iL", &kind, &value)) return -1;
      bool is_slot = kind == kSlot, is_size = kind == kSize;
      if ((is_slot && (value < 0 || value >= slots)) || (is_size && value < 0) ||
          (is_size && self->shapes == Py_None) || kind < kSlot || kind > kSize ||
          (kind == kScratch && (value < 0 || static_cast<size_t>(value) > self->scratch))) {
        PyErr_SetString(PyExc_ValueError, "a kernel's argument is out of range");
        return -1;
      }
      if (is_slot && value < self->inputs) (*self->used)[value] = 1;
      if (is_size && static_cast<size_t>(value) >= kernel.sizes) kernel.sizes = value + 1;
      kernel.arguments.push_back({kind, value});
    }
    kernel.caller = caller_of(count + 1, std::make_index_sequence<kMaxKernelArguments + 1>{});
    self->kernels->push_back(std::move(kernel));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(allocations); i++) {
    Allocation wanted;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(allocations, i), "OOO", &wanted.sizes, &wanted.strides,
                          &wanted.dtype)) {
      return -1;
    }
    self->allocations->push_back(wanted);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); i++) {
    PyObject *slot, *constant;  // (slot, None) or (None, constant)
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(outputs, i), "OO", &slot, &constant)) return -1;
    Py_ssize_t position = slot == Py_None ? -1 : PyLong_AsSsize_t(slot);
    if (slot != Py_None && (position < 0 || position >= slots)) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "an output is out of range");
      return -1;
    }
    self->outputs->push_back(position);
    self->constants->push_back(slot == Py_None ? constant : nullptr);
  }
  if (capsule != Py_None) {
    auto* exchange =
        static_cast<DLPackExchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (!exchange) PyErr_Clear();
    if (exchange && exchange->header.major == 1) self->view = exchange->view;
  }
  return 0;
}

PyObject* program_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  auto* self = reinterpret_cast<Program*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = program_call;
  self->specification = Py_NewRef(arguments);
  self->kernels = new std::vector<Kernel>;
  self->allocations = new std::vector<Allocation>;
  self->constants = new std::vector<PyObject*>;
  self->outputs = new std::vector<Py_ssize_t>;
  self->used = new std::vector<char>;
  if (program_fill(self, arguments) < 0) {
    Py_DECREF(self);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(self);
}

int program_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Program*>(object);
  Py_VISIT(self->specification);
  Py_VISIT(self->last);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

// A cleared program cannot be called: only what is unreachable is cleared.
int program_clear(PyObject* object) {
  auto* self = reinterpret_cast<Program*>(object);
  self->inputs = -1;
  Py_CLEAR(self->last);
  Py_CLEAR(self->specification);
  return 0;
}

void program_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Program*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  program_clear(object);
  delete self->kernels;
  delete self->allocations;
  delete self->constants;
  delete self->outputs;
  delete self->used;
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef program_methods[] = {
    {"boxed", program_boxed, METH_O, "Run on the inputs in a list, which is emptied."},
    {"link", program_link, METH_VARARGS, "Launch another build of a kernel: its number, address."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef program_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Program, vectorcall), READONLY, nullptr},
    {"last", T_OBJECT, offsetof(Program, last), 0, "Inputs of the latest call, or None."},
    {"keep", T_BOOL, offsetof(Program, keep), 0, "Whether the inputs of a call are kept."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot program_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(program_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(program_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(program_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(program_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_methods, program_methods},
    {Py_tp_members, program_members},
    {0, nullptr},
};

PyType_Spec program_spec = {
    "fusec.native.Program", sizeof(Program), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, program_slots};

// --- Entry -------------------------------------------------------------------------------------

enum LookupMode : int { kIs, kAbsent, kEmpty };

// What becomes of a graph's outputs. `kCode` leaves that, and all else, to the function `fast`.
enum ResultShape : char { kCode = 'c', kOne = 'o', kTuple = 't', kList = 'l' };

struct Condition {  // a callable returns a certain object
  PyObject *function, *argument, *expected;
};

struct Lookup {  // a dictionary has a certain object, nothing, or an empty dictionary
  PyObject *dictionary, *key, *expected;
  int mode;
};

struct TypeLookup {  // an object's class is what it was, and so is one of its attributes
  PyObject *object, *type, *name, *expected;
};

struct Cell {
  PyObject *name, *cell;
};

struct Entry {
  PyObject_HEAD
  PyObject* specification;
  PyObject *function, *code, *fast, *graph, *prefix, *names, *tensors, *absent, *tree;
  Py_ssize_t positional, positional_only, named_only;
  int more_positional, more_named;
  char shape;  // of the result: see ResultShape
  std::vector<Py_ssize_t>* order;    // values that `graph` takes
  std::vector<Py_ssize_t>* results;  // outputs of `graph` that make up the result
  std::vector<Py_ssize_t>* checked;  // positions of the values that `tensors` checks
  std::vector<Condition>* conditions;
  std::vector<Lookup>* lookups;
  std::vector<TypeLookup>* types;
  std::vector<Cell>* cells;
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

// Whether this entry is what TorchDynamo would run for the call; no error is left behind.
bool fits(const Entry* self, PyObject* const* given, Py_ssize_t count, PyObject* keywords,
          Values* values) {
  bool ok = PyFunction_GetCode(self->function) == self->code &&
            bind(self, given, count, keywords, values);
  for (size_t i = 0; ok && i < self->lookups->size(); i++) ok = holds((*self->lookups)[i]);
  for (size_t i = 0; ok && i < self->types->size(); i++) ok = holds((*self->types)[i]);
  if (ok && self->tensors != Py_None) ok = tensors_fit(self, *values);
  for (size_t i = 0; ok && i < self->conditions->size(); i++) ok = holds((*self->conditions)[i]);
  if (ok && self->tree != Py_None) ok = tree_fits(self, *values);
  if (PyErr_Occurred()) {
    PyErr_Clear();
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
  for (Py_ssize_t position : *self->order) given[1 + count++] = values.item[position];
  PyObject* outputs = PyObject_Vectorcall(self->graph, given + 1,
                                          count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (!outputs) return nullptr;
  bool is_list = PyList_CheckExact(outputs);
  if (!is_list && !PyTuple_CheckExact(outputs)) {
    Py_DECREF(outputs);
    return PyErr_Format(PyExc_TypeError, "a graph returned no list");
  }
  Py_ssize_t have = is_list ? PyList_GET_SIZE(outputs) : PyTuple_GET_SIZE(outputs);
  Py_ssize_t wanted = static_cast<Py_ssize_t>(self->results->size());
  PyObject* result = self->shape == kOne     ? nullptr
                     : self->shape == kTuple ? PyTuple_New(wanted)
                                             : PyList_New(wanted);
  bool ok = self->shape == kOne || result;
  for (Py_ssize_t i = 0; ok && i < wanted; i++) {
    Py_ssize_t from = (*self->results)[i];
    if (from >= have) {
      PyErr_SetString(PyExc_IndexError, "a graph returned too little");
      ok = false;
      break;
    }
    PyObject* value = is_list ? PyList_GET_ITEM(outputs, from) : PyTuple_GET_ITEM(outputs, from);
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

// Read positions below `limit` from a tuple.
bool read_positions(PyObject* tuple, Py_ssize_t limit, std::vector<Py_ssize_t>* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i));
    if (position < 0 || position >= limit) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a position is out of range");
      return false;
    }
    out->push_back(position);
  }
  return true;
}

int entry_fill(Entry* self, PyObject* arguments) {
  PyObject *shape, *order, *results;
  PyObject *checked, *conditions, *lookups, *types, *cells;
  if (!PyArg_ParseTuple(arguments, "O!O!OO(UO!O!)O!O!nnnppOO!O!OO!O!O!O!", &PyFunction_Type, &self->function,
                        &PyCode_Type, &self->code, &self->fast, &self->graph, &shape, &PyTuple_Type,
                        &order, &PyTuple_Type, &results, &PyTuple_Type, &self->prefix,
                        &PyTuple_Type, &self->names, &self->positional, &self->positional_only,
                        &self->named_only, &self->more_positional, &self->more_named,
                        &self->tensors, &PyTuple_Type, &checked, &PyTuple_Type, &self->absent, &self->tree, &PyTuple_Type,
                        &conditions, &PyTuple_Type, &lookups, &PyTuple_Type, &types, &PyTuple_Type,
                        &cells)) {
    return -1;
  }
  Py_ssize_t total = self->positional + self->named_only + self->more_positional + self->more_named;
  if (total != PyTuple_GET_SIZE(self->names) || total > kMaxValues) {
    PyErr_SetString(PyExc_ValueError, "the names are not those of the parameters");
    return -1;
  }
  self->shape = PyUnicode_GET_LENGTH(shape) ? static_cast<char>(PyUnicode_READ_CHAR(shape, 0)) : 0;
  if (!self->shape || !strchr("cotl", self->shape) ||
      (self->shape == kOne && PyTuple_GET_SIZE(results) != 1)) {
    PyErr_SetString(PyExc_ValueError, "no such shape of a result");
    return -1;
  }
  if (!read_positions(order, total, self->order) || !read_positions(checked, total, self->checked) ||
      !read_positions(results, PY_SSIZE_T_MAX, self->results)) {
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
  self->order = new std::vector<Py_ssize_t>;
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
  type->tp_free(object);
  Py_DECREF(type);
}

// entry.fits(args, kwargs): for those who want to know without running it.
PyObject* entry_fits(PyObject* object, PyObject* const* given, Py_ssize_t count,
                     PyObject* keywords) {
  Values values;
  return PyBool_FromLong(
      fits(reinterpret_cast<Entry*>(object), given, count, keywords, &values));
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

// --- Dispatcher --------------------------------------------------------------------------------

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

}  // namespace

// Returns (Program, Entry, Dispatcher); called once a process, holding the interpreter's lock.
extern "C" PyObject* fusec_native_types(void) {
  PyObject* program = PyType_FromSpec(&program_spec);
  PyObject* entry = PyType_FromSpec(&entry_spec);
  PyObject* dispatcher = PyType_FromSpec(&dispatcher_spec);
  if (!program || !entry || !dispatcher) return nullptr;
  entry_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(entry));
  return Py_BuildValue("(NNN)", program, entry, dispatcher);
}
