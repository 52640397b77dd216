// The kernels of one graph, one after the other, with the memory that they need. See tensors.cpp for
// what these files are.

namespace {

constexpr Py_ssize_t kMaxValues = 64;     // parameters of a function; tensors kept on the stack
constexpr size_t kStackScratch = 16384;   // temporaries up to here need no allocation
constexpr size_t kAlignment = 64;
constexpr size_t kLargeScratch = 4 << 20;  // as for tensors: LARGE_BYTES in codegen/host_program.py
constexpr size_t kHugePage = 2 << 20;
constexpr size_t kMaxKernelArguments = 64;

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

enum ArgumentKind : int { kSlot, kScratch, kNumber, kSize, kInput };

struct Argument {
  int kind;
  // Which slot; offset in the scratch memory; the number itself; which size of `shapes`; which
  // input, an integer.
  int64_t value;
};

struct Kernel {
  void* address;
  Caller caller;
  std::vector<Argument> arguments;
  size_t sizes;  // how many symbolic sizes there must be
  int64_t* journal = nullptr;  // of an edited one: calls begun, calls ended
};

struct Allocation {
  PyObject *sizes, *strides, *dtype;
};

// A part of the scratch memory, and the pattern that fills it before a kernel: for tests.
struct Fill {
  size_t kernel, offset, count;
  std::vector<char> pattern;
};

struct Program {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* specification;  // keeps alive what the rest points to
  PyObject* last;           // inputs of the latest call, where they are kept
  PyObject* marks;          // (output, attribute, set) to put on outputs, or null
  PyObject* epilogue;       // see `finish`; or null
  PyObject* instead;        // what is called in its place with the same inputs, or null
  PyObject* otherwise;      // (error, what is called in its place where checks raise it), or null
  char keep;
  bool release;
  bool integer_inputs;      // there are some among the kernels' arguments; then there are no shapes
  Py_ssize_t inputs;
  size_t scratch;
  // `shapes` is None, or yields of the inputs: a tuple of the symbolic sizes, then sizes and strides
  // of each allocation.
  PyObject *allocate, *threads, *data_ptr, *failed, *shapes;
  ViewFunction view;
  std::vector<Kernel>* kernels;
  std::vector<Allocation>* allocations;
  std::vector<PyObject*>* constants;  // per output: a value, or null for a slot
  std::vector<Py_ssize_t>* outputs;
  std::vector<Fill>* fills;  // see poison.py; none but in its mode
  std::vector<char>* used;  // per input: whether a kernel takes its memory
  InputCheck* check;        // of the inputs, before a kernel starts; or null
};

// Find where the inputs that kernels take are; false, with an error set, if they do not fit.
bool find_inputs(const Program* self, PyObject* const* given, void** addresses) {
  Sizes sizes;
  bool fit = !self->check || sizes.read(self->check, given, self->inputs);
  bool all_viewed = true;
  for (Py_ssize_t i = 0; i < self->inputs; i++) {
    addresses[i] = nullptr;
    if (!(*self->used)[i]) continue;
    DLTensor view;
    bool viewed = self->view && self->view(given[i], &view) == 0;
    all_viewed = all_viewed && viewed;
    if (viewed) addresses[i] = static_cast<char*>(view.data) + view.byte_offset;
    if (fit && self->check && is_checked(self->check, i)) {
      fit = viewed && fits((*self->check->inputs)[i], view, sizes.values);
    }
  }
  PyErr_Clear();
  fit = fit && (!self->check || lies_apart(self->check, given, self->inputs));
  if (!fit && !refuse_inputs(self->check, given, self->inputs)) return false;
  for (Py_ssize_t i = 0; !all_viewed && i < self->inputs; i++) {  // Python found nothing wrong
    DLTensor view;
    bool viewed;
    if ((*self->used)[i] &&
        !find_address(self->data_ptr, self->view, given[i], &view, &viewed, &addresses[i])) {
      return false;
    }
  }
  return true;
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

// Memory for temporaries. The C library gives large blocks back to the system when they are freed;
// asked for in huge pages, one fault takes the place of five hundred in the next call.
void* memory_of(size_t size) {
  size_t alignment = size >= kLargeScratch ? kHugePage : kAlignment;
  size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = aligned_memory(alignment, rounded);
#ifdef MADV_HUGEPAGE
  if (memory && size >= kLargeScratch) madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  return memory;
}

// Copy outputs back into the inputs that they are new values of, and put outputs in place that are
// inputs or views of them. `epilogue` is (inputs that the first outputs are copied into, copy,
// ((output, input, what makes it or None) of each view)); it returns the outputs that are left.
//
// An output that is the input itself has been written by a kernel. Copying it onto itself tells
// autograd, and refuses where this may not be done.
PyObject* finish(PyObject* epilogue, PyObject* const* given, Py_ssize_t count, PyObject* outputs) {
  PyObject *updates, *copy, *views;
  if (!PyArg_ParseTuple(epilogue, "O!OO!", &PyTuple_Type, &updates, &copy, &PyTuple_Type, &views)) {
    return nullptr;
  }
  Py_ssize_t first = PyTuple_GET_SIZE(updates), position;
  if (first > PyList_GET_SIZE(outputs)) {
    PyErr_SetString(PyExc_IndexError, "there are fewer outputs than inputs to update");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < first; i++) {
    if (!position_of(PyTuple_GET_ITEM(updates, i), count, &position)) return nullptr;
    PyObject* pair[] = {nullptr, given[position], PyList_GET_ITEM(outputs, i)};
    PyObject* done =
        PyObject_Vectorcall(copy, pair + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (!done) return nullptr;
    Py_DECREF(done);
  }
  PyObject* left = PyList_GetSlice(outputs, first, PyList_GET_SIZE(outputs));
  for (Py_ssize_t i = 0; left && i < PyTuple_GET_SIZE(views); i++) {
    Py_ssize_t source;
    PyObject *output, *input, *make;
    PyObject* value = nullptr;
    if (PyArg_ParseTuple(PyTuple_GET_ITEM(views, i), "OOO", &output, &input, &make) &&
        position_of(output, PyList_GET_SIZE(left), &position) &&
        position_of(input, count, &source)) {
      value = make == Py_None ? Py_NewRef(given[source]) : PyObject_CallOneArg(make, given[source]);
    }
    if (!value || PyList_SetItem(left, position, value) < 0) Py_CLEAR(left);
  }
  return left;
}

void fill_scratch(const Program* self, size_t kernel, char* scratch) {
  for (const Fill& fill : *self->fills) {
    if (fill.kernel != kernel) continue;
    char* to = scratch + fill.offset;
    for (size_t i = 0; i < fill.count; i++, to += fill.pattern.size()) {
      memcpy(to, fill.pattern.data(), fill.pattern.size());
    }
  }
}

// program.poison(kernel, offset, count, pattern): fill scratch memory before a kernel, in each call.
PyObject* program_poison(PyObject* object, PyObject* arguments) {
  auto* self = reinterpret_cast<Program*>(object);
  Py_ssize_t kernel, offset, count, size;
  const char* pattern;
  if (!PyArg_ParseTuple(arguments, "nnny#", &kernel, &offset, &count, &pattern, &size)) return nullptr;
  if (kernel < 0 || offset < 0 || count < 0 ||
      static_cast<size_t>(offset + count * size) > self->scratch) {
    PyErr_SetString(PyExc_ValueError, "there is no such scratch memory");
    return nullptr;
  }
  self->fills->push_back({static_cast<size_t>(kernel), static_cast<size_t>(offset),
                          static_cast<size_t>(count), {pattern, pattern + size}});
  Py_RETURN_NONE;
}

// Call what stands in for the program, with the same inputs.
PyObject* run_other(Program* self, PyObject* other, PyObject* const* given, Py_ssize_t count) {
  Py_INCREF(other);  // it may be replaced meanwhile
  PyObject* results = PyObject_Vectorcall(other, given, count, nullptr);
  Py_DECREF(other);
  if (results && !PyList_Check(results)) {
    PyErr_SetString(PyExc_TypeError, "what stands in for a program must return a list");
    Py_CLEAR(results);
  }
  if (results && self->marks && !mark_outputs(self->marks, results)) Py_CLEAR(results);
  return results;
}

// What becomes of a call whose inputs were refused: where the error says that only kernels cannot
// read them, somebody else runs on them.
PyObject* run_refused(Program* self, PyObject* const* given, Py_ssize_t count) {
  PyObject* otherwise = self->otherwise;
  if (!otherwise || !PyTuple_Check(otherwise) || PyTuple_GET_SIZE(otherwise) != 2 ||
      !PyErr_ExceptionMatches(PyTuple_GET_ITEM(otherwise, 0))) {
    return nullptr;
  }
  PyErr_Clear();
  return run_other(self, PyTuple_GET_ITEM(otherwise, 1), given, count);
}

PyObject* run_kernels(Program* self, PyObject* const* given, Py_ssize_t count) {
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
  for (Py_ssize_t i = 0; i < count; i++) tensors[i] = given[i];
  if (!find_inputs(self, given, addresses)) {
    fail();
    return run_refused(self, given, count);
  }
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
    DLTensor view;
    bool viewed;
    if (!find_address(self->data_ptr, self->view, tensor, &view, &viewed, &addresses[count + i])) {
      fail();
      return run_refused(self, given, count);  // no kernel has run
    }
  }
  PyObject* number = PyObject_CallNoArgs(self->threads);
  if (!number) return fail();
  int64_t threads = PyLong_AsLongLong(number);
  Py_DECREF(number);
  if (threads == -1 && PyErr_Occurred()) return fail();

  alignas(kAlignment) char stack_scratch[kStackScratch];
  char* scratch = stack_scratch;
  if (self->scratch > kStackScratch) {
    scratch = static_cast<char*>(memory_of(self->scratch));
    if (!scratch) {
      PyErr_NoMemory();
      return fail();
    }
  }
  // Integers among the inputs are read before the lock goes: that needs Python.
  if (self->integer_inputs) {
    integers.resize(count);
    for (const Kernel& kernel : *self->kernels) {
      for (const Argument& argument : kernel.arguments) {
        if (argument.kind != kInput) continue;
        int64_t number = PyLong_AsLongLong(given[argument.value]);
        if (number == -1 && PyErr_Occurred()) {
          if (scratch != stack_scratch) free_aligned(scratch);
          return fail();
        }
        integers[argument.value] = number;
      }
    }
  }
  int status = 0;
  size_t which = 0;
  int64_t values[kMaxKernelArguments];
  PyThreadState* thread = self->release ? PyEval_SaveThread() : nullptr;
  for (; which < self->kernels->size(); which++) {
    const Kernel& kernel = (*self->kernels)[which];
    if (!self->fills->empty()) fill_scratch(self, which, scratch);
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
    int64_t* journal = kernel.journal;
    if (journal) __atomic_fetch_add(&journal[0], 1, __ATOMIC_RELAXED);
    status = kernel.caller(kernel.address, values);
    if (journal) __atomic_fetch_add(&journal[1], 1, __ATOMIC_RELAXED);
    if (status) break;
  }
  if (thread) PyEval_RestoreThread(thread);
  if (scratch != stack_scratch) free_aligned(scratch);
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
  if (self->epilogue && PyTuple_Check(self->epilogue)) {
    PyObject* left = finish(self->epilogue, given, count, list);
    Py_SETREF(list, left);
    if (!list) return nullptr;
  }
  if (self->marks && !mark_outputs(self->marks, list)) Py_CLEAR(list);
  return list;
}

PyObject* program_run(Program* self, PyObject* const* given, Py_ssize_t count) {
  if (count != self->inputs) {
    return PyErr_Format(PyExc_TypeError, "the program takes %zd inputs, not %zd", self->inputs,
                        count);
  }
  if (self->instead && self->instead != Py_None) {
    return run_other(self, self->instead, given, count);
  }
  if (!self->keep) return run_kernels(self, given, count);
  PyObject* kept = PyTuple_New(count);
  if (!kept) return nullptr;
  for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(kept, i, Py_NewRef(given[i]));
  PyObject* before = self->last;
  self->last = kept;
  PyObject* results = run_kernels(self, given, count);
  // A call that raises leaves what is checked and timed as it was.
  if (!results && self->last == kept) {
    self->last = before;
    before = kept;
  }
  Py_XDECREF(before);
  return results;
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
  unsigned long long address, journal = 0;
  if (!PyArg_ParseTuple(arguments, "nK|K", &which, &address, &journal)) return nullptr;
  auto& kernels = *reinterpret_cast<Program*>(object)->kernels;
  if (which < 0 || which >= static_cast<Py_ssize_t>(kernels.size()) || !address) {
    PyErr_SetString(PyExc_IndexError, "there is no such kernel");
    return nullptr;
  }
  kernels[which].address = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  kernels[which].journal = reinterpret_cast<int64_t*>(static_cast<uintptr_t>(journal));
  Py_RETURN_NONE;
}

int program_fill(Program* self, PyObject* arguments) {
  PyObject *kernels, *allocations, *outputs, *capsule, *check;
  unsigned long long scratch;
  int release;
  if (!PyArg_ParseTuple(arguments, "nO!O!O!KOOOOOOpO", &self->inputs, &PyTuple_Type, &kernels,
                        &PyTuple_Type, &allocations, &PyTuple_Type, &outputs, &scratch,
                        &self->allocate, &self->threads, &self->data_ptr, &self->failed,
                        &self->shapes, &capsule, &release, &check) ||
      !take_check(check, &self->check)) {
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
      bool is_slot = kind == kSlot, is_size = kind == kSize, is_input = kind == kInput;
      if ((is_slot && (value < 0 || value >= slots)) || (is_size && value < 0) ||
          (is_size && self->shapes == Py_None) || kind < kSlot || kind > kInput ||
          (is_input && (value < 0 || value >= self->inputs || self->shapes != Py_None)) ||
          (kind == kScratch && (value < 0 || static_cast<size_t>(value) > self->scratch))) {
        PyErr_SetString(PyExc_ValueError, "a kernel's argument is out of range");
        return -1;
      }
      if (is_slot && value < self->inputs) (*self->used)[value] = 1;
      if (is_input) self->integer_inputs = true;
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
  self->view = view_of_capsule(capsule);
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
  self->fills = new std::vector<Fill>;
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
  Py_VISIT(self->marks);
  Py_VISIT(self->epilogue);
  Py_VISIT(self->instead);
  Py_VISIT(self->otherwise);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

// A cleared program cannot be called: only what is unreachable is cleared.
int program_clear(PyObject* object) {
  auto* self = reinterpret_cast<Program*>(object);
  self->inputs = -1;
  Py_CLEAR(self->last);
  Py_CLEAR(self->marks);
  Py_CLEAR(self->epilogue);
  Py_CLEAR(self->instead);
  Py_CLEAR(self->otherwise);
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
  delete self->fills;
  delete self->used;
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef program_methods[] = {
    {"boxed", program_boxed, METH_O, "Run on the inputs in a list, which is emptied."},
    {"poison", program_poison, METH_VARARGS, "Fill scratch memory before a kernel, in each call."},
    {"link", program_link, METH_VARARGS, "Launch another build of a kernel: its number, address, journal."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef program_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Program, vectorcall), READONLY, nullptr},
    {"last", T_OBJECT, offsetof(Program, last), 0, "Inputs of the latest call, or None."},
    {"marks", T_OBJECT, offsetof(Program, marks), 0, "Output, attribute, set: put on outputs."},
    {"epilogue", T_OBJECT, offsetof(Program, epilogue), 0, "Updated inputs, views of inputs."},
    {"keep", T_BOOL, offsetof(Program, keep), 0, "Whether the inputs of a call are kept."},
    {"instead", T_OBJECT, offsetof(Program, instead), 0, "Called in its place, or None."},
    {"otherwise", T_OBJECT, offsetof(Program, otherwise), 0, "Error, what is called then; or None."},
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

}  // namespace
