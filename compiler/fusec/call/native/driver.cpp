// The functions of the CUDA driver that launches and graphs need. They are looked up in the
// driver's library when it is there: nothing is linked and no header of CUDA's is read, so that
// what follows is built on every machine. See tensors.cpp for what these files are.

namespace {

using DeviceAddress = unsigned long long;

struct KernelNodeParams {  // CUDA_KERNEL_NODE_PARAMS_v2
  void* function;
  unsigned grid[3], block[3], shared;
  void** parameters;
  void** extra;
  void *kernel, *context;
};

struct MemcpySide {
  size_t x, y, z, level;
  int kind;
  const void* host;
  DeviceAddress device;
  void *array, *reserved;
  size_t pitch, height;
};

struct MemcpyParams {  // CUDA_MEMCPY3D
  MemcpySide from, to;
  size_t width, height, depth;
};

constexpr int kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE
constexpr int kRelaxed = 2;       // CU_STREAM_CAPTURE_MODE_RELAXED

enum Chaining : int { kNever, kMeasured, kAlways };

struct Driver {
  PyObject_HEAD
  int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                unsigned shared, void* stream, void** parameters, void** extra);
  int (*copy)(DeviceAddress to, DeviceAddress from, size_t bytes, void* stream);
  int (*capture_info)(void* stream, int* status, uint64_t* id, void** graph, void* const** last,
                      size_t* count);
  int (*set_kernel)(void* graph, void* node, const KernelNodeParams*);
  int (*set_copy)(void* graph, void* node, const MemcpyParams*, void* context);
  int (*launch_graph)(void* graph, void* stream);
  int (*create_graph)(void** graph, unsigned flags);
  int (*add_kernel)(void** node, void* graph, void* const* after, size_t count,
                    const KernelNodeParams*);
  int (*instantiate)(void** executable, void* graph, unsigned long long flags);
  int (*destroy_executable)(void* executable);
  int (*destroy_graph)(void* graph);
  int (*exchange_capture_mode)(int* mode);
  int (*current_context)(void** context);
  int (*device_handle)(int* handle, int number);
  int (*retain_context)(void** context, int handle);
  int (*set_context)(void* context);
  int (*error_name)(int error, const char** name);
  int (*error_text)(int error, const char** text);
  int chaining;  // whether starts in a row become one launch: kNever, kMeasured or kAlways
};

template <typename Function>
bool look_up(void* library, const char* name, Function** out) {
  *out = reinterpret_cast<Function*>(function_of(library, name));
  if (!*out) PyErr_Format(PyExc_OSError, "the CUDA driver has no %s", name);
  return *out != nullptr;
}

void raise_driver(const Driver* driver, const char* what, int error) {
  const char *name = nullptr, *text = nullptr;
  driver->error_name(error, &name);
  driver->error_text(error, &text);
  PyErr_Format(PyExc_RuntimeError, "%s failed: %s (%s)", what, name ? name : "unknown error",
               text ? text : "no description");
}

// A thread that has not used the GPU yet has no context there: CUDA's runtime would make the
// device's own one current, and torch's memory comes from a pool that need not ask the runtime.
bool in_context(const Driver* driver, long device) {
  void* context = nullptr;
  int handle = 0, error = driver->current_context(&context);
  if (!error && context) return true;
  if (!error) error = driver->device_handle(&handle, static_cast<int>(device));
  if (!error) error = driver->retain_context(&context, handle);
  if (!error) error = driver->set_context(context);
  if (error) raise_driver(driver, "using the GPU in this thread", error);
  return !error;
}

PyObject* driver_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  const char* path;
  int chaining = kMeasured;
  if (!PyArg_ParseTuple(arguments, "s|i", &path, &chaining)) return nullptr;
  void* library = open_library(path);
  if (!library) return nullptr;
  auto* self = reinterpret_cast<Driver*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  bool ok = look_up(library, "cuLaunchKernel", &self->launch) &&
            look_up(library, "cuMemcpyDtoDAsync_v2", &self->copy) &&
            look_up(library, "cuStreamGetCaptureInfo_v2", &self->capture_info) &&
            look_up(library, "cuGraphExecKernelNodeSetParams_v2", &self->set_kernel) &&
            look_up(library, "cuGraphExecMemcpyNodeSetParams", &self->set_copy) &&
            look_up(library, "cuGraphLaunch", &self->launch_graph) &&
            look_up(library, "cuGraphCreate", &self->create_graph) &&
            look_up(library, "cuGraphAddKernelNode_v2", &self->add_kernel) &&
            look_up(library, "cuGraphInstantiateWithFlags", &self->instantiate) &&
            look_up(library, "cuGraphExecDestroy", &self->destroy_executable) &&
            look_up(library, "cuGraphDestroy", &self->destroy_graph) &&
            look_up(library, "cuThreadExchangeStreamCaptureMode", &self->exchange_capture_mode) &&
            look_up(library, "cuCtxGetCurrent", &self->current_context) &&
            look_up(library, "cuDeviceGet", &self->device_handle) &&
            look_up(library, "cuDevicePrimaryCtxRetain", &self->retain_context) &&
            look_up(library, "cuCtxSetCurrent", &self->set_context) &&
            look_up(library, "cuGetErrorName", &self->error_name) &&
            look_up(library, "cuGetErrorString", &self->error_text);
  if (ok) self->chaining = chaining;
  if (!ok) Py_CLEAR(self);
  return reinterpret_cast<PyObject*>(self);
}

PyType_Slot driver_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(driver_new)},
    {0, nullptr},
};

PyType_Spec driver_spec = {"fusec.native.Driver", sizeof(Driver), 0, Py_TPFLAGS_DEFAULT,
                           driver_slots};

PyTypeObject* driver_type = nullptr;

}  // namespace
