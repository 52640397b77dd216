// What one call of a graph on a GPU does, with all sizes known: allocations, launches through the
// driver, calls of operators. Run step by step, or captured once as a CUDA graph and replayed. See
// tensors.cpp for what these files are.

#include <deque>
#include <mutex>

namespace {

enum StepKind : int { kAllocate, kLaunch, kCopy, kCall, kFree };

constexpr size_t kFewSlots = 128;  // kept on the stack
constexpr size_t kMostParameters = 256;

struct Place {  // a position in a slot's memory; where `slot` is negative, the number `offset`
  Py_ssize_t slot;
  int64_t offset;
};

struct Chain;

// What the kernels after an operator were told of its result.
struct Laid {
  PyObject *shape = nullptr, *strides = nullptr, *dtype = nullptr;
  int code = kAnyCode, bits = 0;
  std::vector<int64_t> sizes, steps;
};

struct Step {
  int kind = kFree;
  Py_ssize_t slot = -1;                                        // kAllocate
  PyObject *sizes = nullptr, *strides = nullptr, *dtype = nullptr;
  void* function = nullptr;                                    // kLaunch
  unsigned grid[3] = {0, 0, 0}, block = 0, shared = 0;
  Chain* chain = nullptr;                                      // kLaunch: the first of a row
  std::vector<size_t> after;                                   // kLaunch: how far back in it
  std::vector<Place> places;                                   // kLaunch; kCopy: to, from
  size_t bytes = 0;                                            // kCopy
  PyObject *callable = nullptr, *names = nullptr;              // kCall
  std::vector<std::pair<Py_ssize_t, PyObject*>> arguments;     // a slot, or an object
  std::vector<Py_ssize_t> outputs;                             // also what kFree drops
  std::vector<Laid> laid;                                      // what an output must be
  bool many = false;                                           // kCall: the result is a sequence
};

struct Result {  // a slot, a function of one, or a constant
  Py_ssize_t slot;
  PyObject* object;
};

struct Node {  // of a graph, which is told where its memory is
  const Step* step;
  void* handle;
  std::vector<int64_t> values;  // what it was told last
};

// Starts in a row as one small graph; see chains.cpp.
struct Chain {
  size_t end;  // behind its last step
  void *graph, *executable;
  std::vector<Node> nodes;
  int runs;             // while both ways are tried; then negative
  double apart, joined; // the shortest of each, seconds
};

// What a captured graph makes, where it stays from call to call. It is handed out as another tensor
// over the same memory, and not made again before nobody else holds that.
struct Resident {
  Py_ssize_t slot;
  PyObject* tensor;   // null before the capture
  PyObject *storage, *number;  // its storage, and that as a number that `use_count` takes
  void* address;
};

struct Plan {
  PyObject_HEAD
  PyObject* specification;  // keeps alive what the rest points to
  Driver* driver;
  Py_ssize_t inputs, slots;
  PyObject *allocate, *data_ptr, *expect;
  ViewFunction view;
  std::vector<Step>* before;  // outside of the graph: memory that each call gets anew
  std::vector<Step>* steps;
  std::deque<Chain>* chains;
  std::vector<Result>* results;
  std::vector<char>* loose;   // per slot: whether its address may differ from call to call
  std::vector<std::pair<Py_ssize_t, void*>>* fixed;  // addresses that the graph knows by heart
  std::vector<Node>* nodes;
  void* graph;       // what the driver launches; null before it is captured
  PyObject* replay;  // launches it in place of the driver, if not null
  PyObject* owner;   // of the graph
  std::mutex* lock;
  bool broken;       // the graph cannot be told where memory is
  std::vector<Resident>* residents;
  // `use_count` takes a storage's number; `hooked` returns None unless somebody is given what is
  // saved for backward; `probe` returns a tensor that nobody else knows.
  PyObject *use_count, *hooked, *probe;
  Py_ssize_t alone_uses, alone_references;  // of a storage that nobody else holds; -1: not known
  bool handing;      // residents are being handed out
};

// The tensors of one call; every reference is owned.
struct Frame {
  PyObject* few_tensors[kFewSlots];
  void* few_addresses[kFewSlots];
  std::vector<PyObject*> more_tensors;
  std::vector<void*> more_addresses;
  PyObject** tensors = few_tensors;
  void** addresses = few_addresses;
  size_t count;
  explicit Frame(size_t slots) : count(slots) {
    if (slots > kFewSlots) {
      more_tensors.resize(slots);
      more_addresses.resize(slots);
      tensors = more_tensors.data();
      addresses = more_addresses.data();
    }
    for (size_t i = 0; i < slots; i++) {
      tensors[i] = nullptr;
      addresses[i] = nullptr;
    }
  }
  Frame(const Frame&) = delete;
  ~Frame() {
    for (size_t i = 0; i < count; i++) Py_XDECREF(tensors[i]);
  }
};

bool allocate_slot(const Plan* self, const Step& step, Frame* frame) {
  PyObject* arguments[] = {nullptr, step.sizes, step.strides, step.dtype};
  PyObject* tensor = PyObject_Vectorcall(self->allocate, arguments + 1,
                                         3 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (!tensor) return false;
  Py_XDECREF(std::exchange(frame->tensors[step.slot], tensor));
  DLTensor view;
  bool viewed;
  return find_address(self->data_ptr, self->view, tensor, &view, &viewed,
                      &frame->addresses[step.slot]);
}

bool is_laid(const DLTensor& view, const Laid& wanted) {
  if (static_cast<size_t>(view.ndim) != wanted.sizes.size()) return false;
  if (wanted.code != kAnyCode &&
      (view.dtype.code != wanted.code || view.dtype.bits != wanted.bits)) {
    return false;
  }
  for (int32_t i = 0; i < view.ndim; i++) {
    if (view.shape[i] != wanted.sizes[i]) return false;
    if (view.shape[i] != 1 && view.strides[i] != wanted.steps[i]) return false;
  }
  return true;
}

// Put an operator's result into its slot, laid out as the kernels after it were told.
bool store_result(const Plan* self, const Step& step, size_t which, PyObject* value,
                  Frame* frame) {
  Py_ssize_t slot = step.outputs[which];
  if (slot < 0) return true;
  Py_XDECREF(std::exchange(frame->tensors[slot], Py_NewRef(value)));
  DLTensor view;
  bool viewed;
  if (!find_address(self->data_ptr, self->view, value, &view, &viewed, &frame->addresses[slot])) {
    return false;
  }
  const Laid& wanted = step.laid[which];
  if (viewed && is_laid(view, wanted)) return true;
  if (!wanted.shape) return true;
  PyObject* arguments[] = {nullptr, value, wanted.shape, wanted.strides, wanted.dtype};
  PyObject* laid = PyObject_Vectorcall(self->expect, arguments + 1,
                                       4 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (!laid) return false;
  Py_SETREF(frame->tensors[slot], laid);
  return find_address(self->data_ptr, self->view, laid, &view, &viewed, &frame->addresses[slot]);
}

bool call_operator(const Plan* self, const Step& step, Frame* frame) {
  PyObject* few[17];
  std::vector<PyObject*> more;
  PyObject** given = few;
  size_t count = step.arguments.size();
  if (count > 16) {
    more.resize(count + 1);
    given = more.data();
  }
  for (size_t i = 0; i < count; i++) {
    const auto& [slot, object] = step.arguments[i];
    given[1 + i] = slot < 0 ? object : frame->tensors[slot];
    if (!given[1 + i]) {
      PyErr_SetString(PyExc_RuntimeError, "a step needs a tensor that is not there");
      return false;
    }
  }
  size_t named = step.names ? static_cast<size_t>(PyTuple_GET_SIZE(step.names)) : 0;
  PyObject* result =
      PyObject_Vectorcall(step.callable, given + 1,
                          (count - named) | PY_VECTORCALL_ARGUMENTS_OFFSET, step.names);
  if (!result) return false;
  bool ok = true;
  if (!step.many) {
    ok = step.outputs.empty() || store_result(self, step, 0, result, frame);
  } else {
    PyObject* items = PySequence_Fast(result, "an operator returned no sequence");
    ok = items != nullptr;
    if (ok && static_cast<size_t>(PySequence_Fast_GET_SIZE(items)) != step.outputs.size()) {
      PyErr_SetString(PyExc_RuntimeError, "an operator returned another number of results");
      ok = false;
    }
    for (size_t i = 0; ok && i < step.outputs.size(); i++) {
      ok = store_result(self, step, i, PySequence_Fast_GET_ITEM(items, i), frame);
    }
    Py_XDECREF(items);
  }
  Py_DECREF(result);
  return ok;
}

int64_t value_of(const Place& place, const Frame& frame) {
  if (place.slot < 0) return place.offset;
  return reinterpret_cast<int64_t>(frame.addresses[place.slot]) + place.offset;
}

// Start a kernel or a copy; needs no Python. Every kind of parameter is stored in 8 bytes, of which
// the driver reads as many as the kernel's parameter has.
int start(const Driver* driver, const Step& step, const Frame& frame, void* stream) {
  if (step.kind == kCopy) {
    if (!step.bytes) return 0;
    return driver->copy(static_cast<DeviceAddress>(value_of(step.places[0], frame)),
                        static_cast<DeviceAddress>(value_of(step.places[1], frame)), step.bytes,
                        stream);
  }
  if (!step.grid[0] || !step.grid[1] || !step.grid[2]) return 0;
  int64_t values[kMostParameters];
  void* parameters[kMostParameters];
  for (size_t i = 0; i < step.places.size(); i++) {
    values[i] = value_of(step.places[i], frame);
    parameters[i] = &values[i];
  }
  return driver->launch(step.function, step.grid[0], step.grid[1], step.grid[2], step.block, 1, 1,
                        step.shared, stream, parameters, nullptr);
}

bool does_something(const Step& step) {
  if (step.kind == kCopy) return step.bytes != 0;
  return step.grid[0] && step.grid[1] && step.grid[2];
}

// A start as the node of a graph; `parameters` becomes the places of `values`.
KernelNodeParams node_params(const Step& step, int64_t* values, void** parameters) {
  KernelNodeParams wanted;
  memset(&wanted, 0, sizeof(wanted));
  wanted.function = step.function;
  for (int i = 0; i < 3; i++) wanted.grid[i] = step.grid[i];
  wanted.block[0] = step.block;
  wanted.block[1] = wanted.block[2] = 1;
  wanted.shared = step.shared;
  wanted.parameters = parameters;
  for (size_t i = 0; i < step.places.size(); i++) parameters[i] = &values[i];
  return wanted;
}

// Tell a node of a graph its parameters, unless they are what it was told last.
int update_node(const Driver* driver, void* graph, Node* node, int64_t* values, void* context) {
  const Step& step = *node->step;
  if (std::equal(node->values.begin(), node->values.end(), values)) return 0;
  int error;
  if (step.kind == kCopy) {
    MemcpyParams wanted;
    memset(&wanted, 0, sizeof(wanted));
    wanted.from.kind = wanted.to.kind = kDeviceMemory;
    wanted.to.device = static_cast<DeviceAddress>(values[0]);
    wanted.from.device = static_cast<DeviceAddress>(values[1]);
    wanted.width = step.bytes;
    wanted.height = wanted.depth = 1;
    error = driver->set_copy(graph, node->handle, &wanted, context);
  } else {
    void* parameters[kMostParameters];
    KernelNodeParams wanted = node_params(step, values, parameters);
    error = driver->set_kernel(graph, node->handle, &wanted);
  }
  if (!error) std::copy(values, values + node->values.size(), node->values.begin());
  return error;
}

// Find the node that the latest start became, if it must be told where its memory is.
bool note_node(Plan* self, const Step& step, const Frame& frame, void* stream) {
  bool varies = false;
  for (const Place& place : step.places) {
    varies = varies || (place.slot >= 0 && (*self->loose)[place.slot]);
  }
  if (!varies || !does_something(step)) return true;
  int status = 0;
  uint64_t id;
  void* graph = nullptr;
  void* const* last = nullptr;
  size_t count = 0;
  int error = self->driver->capture_info(stream, &status, &id, &graph, &last, &count);
  if (error) {
    raise_driver(self->driver, "asking for the node of a kernel", error);
    return false;
  }
  if (status != 1 || count != 1) {
    PyErr_SetString(PyExc_RuntimeError, "a kernel did not become one node of the graph");
    return false;
  }
  Node node{&step, last[0], {}};
  for (const Place& place : step.places) node.values.push_back(value_of(place, frame));
  self->nodes->push_back(std::move(node));
  return true;
}

}  // namespace
