// A stand-in for the CUDA driver, for tests on machines without one: kernels are functions of this
// file on ordinary memory, a graph is a list of what was started while a stream was captured.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Kernel {
  void (*run)(unsigned programs, void** parameters);
  int parameters;
};

struct Node {
  const Kernel* kernel;  // null for a copy
  unsigned programs;
  std::vector<uint64_t> values;
  uint64_t to, from;
  size_t bytes;
};

struct Graph {
  std::vector<Node*> nodes;
};

Graph* capturing = nullptr;
void* captured_stream = nullptr;
Node* last = nullptr;
int refusing = 0;
int capture_mode = 0;
int graphs = 0;  // that were created and not destroyed
bool slow_graphs = false, slow_launches = false;
std::string calls;

template <typename T>
T read(void* parameter) {
  T value;
  memcpy(&value, parameter, sizeof(T));
  return value;
}

// out = relu(a + b), 32 elements a program.
void add_relu(unsigned programs, void** p) {
  auto *a = read<const float*>(p[0]), *b = read<const float*>(p[1]);
  auto* out = read<float*>(p[2]);
  int n = read<int32_t>(p[3]);
  for (int i = 0; i < n && i < static_cast<int>(32 * programs); i++) {
    out[i] = a[i] + b[i] > 0 ? a[i] + b[i] : 0;
  }
}

// out = x * factor
void scale(unsigned, void** p) {
  auto* x = read<const float*>(p[0]);
  auto* out = read<float*>(p[1]);
  int64_t n = read<int64_t>(p[2]);
  int factor = read<int32_t>(p[3]);
  for (int64_t i = 0; i < n; i++) out[i] = x[i] * factor;
}

Kernel kernels[] = {{add_relu, 4}, {scale, 4}};
thread_local void* context = &kernels;

void perform(const Node& node) {
  if (!node.kernel) {
    memcpy(reinterpret_cast<void*>(node.to), reinterpret_cast<void*>(node.from), node.bytes);
    return;
  }
  std::vector<uint64_t> values = node.values;
  std::vector<void*> parameters;
  for (uint64_t& value : values) parameters.push_back(&value);
  node.kernel->run(node.programs, parameters.data());
}

int add(void* stream, Node node) {
  if (capturing && stream == captured_stream) {
    last = new Node(node);
    capturing->nodes.push_back(last);
  } else {
    perform(node);
  }
  return 0;
}

Node kernel_node(void* function, unsigned programs, void** parameters) {
  auto* kernel = static_cast<const Kernel*>(function);
  Node node{kernel, programs, {}, 0, 0, 0};
  for (int i = 0; i < kernel->parameters; i++) node.values.push_back(read<uint64_t>(parameters[i]));
  return node;
}

struct KernelNodeParams {
  void* function;
  unsigned grid[3], block[3], shared;
  void** parameters;
};

struct MemcpySide {
  size_t x, y, z, level;
  int kind;
  const void* host;
  unsigned long long device;
  void *array, *reserved;
  size_t pitch, height;
};

struct MemcpyParams {
  MemcpySide from, to;
  size_t width, height, depth;
};

}  // namespace

extern "C" {

int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                   unsigned, unsigned shared, void* stream, void** parameters, void**) {
  calls += "launch " + std::to_string(x) + "x" + std::to_string(y) + "x" + std::to_string(z) + " " +
           std::to_string(threads) + " " + std::to_string(shared) + " on " +
           std::to_string(reinterpret_cast<uintptr_t>(stream)) + "\n";
  if (!context) return 201;
  if (refusing == 1) return 700;
  if (slow_launches) usleep(500);
  return add(stream, kernel_node(function, x, parameters));
}

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes,
                         void* stream) {
  calls += "copy " + std::to_string(bytes) + "\n";
  return add(stream, {nullptr, 0, {}, to, from, bytes});
}

int cuStreamGetCaptureInfo_v2(void* stream, int* status, uint64_t* id, void** graph,
                              void* const** nodes, size_t* count) {
  static void* one;
  *status = capturing && stream == captured_stream;
  *id = 1;
  *graph = capturing;
  one = last;
  *nodes = &one;
  *count = last ? 1 : 0;
  return 0;
}

int cuGraphExecKernelNodeSetParams_v2(void*, void* node, const KernelNodeParams* params) {
  calls += "tell kernel\n";
  if (refusing == 2) return 910;
  *static_cast<Node*>(node) = kernel_node(params->function, params->grid[0], params->parameters);
  return 0;
}

int cuGraphExecMemcpyNodeSetParams(void*, void* node, const MemcpyParams* params, void*) {
  calls += "tell copy\n";
  if (params->from.kind != 2 || params->to.kind != 2 || params->height != 1 || params->depth != 1) {
    return 1;
  }
  auto* copy = static_cast<Node*>(node);
  copy->to = params->to.device;
  copy->from = params->from.device;
  copy->bytes = params->width;
  return 0;
}

int cuGraphLaunch(void* graph, void*) {
  calls += "graph\n";
  if (refusing == 4) return 900;
  if (slow_graphs) usleep(500);
  for (const Node* node : static_cast<Graph*>(graph)->nodes) perform(*node);
  return 0;
}

int cuGraphCreate(void** graph, unsigned) {
  *graph = new Graph;
  graphs++;
  return 0;
}

int cuGraphAddKernelNode_v2(void** node, void* graph, void* const* after, size_t count,
                            const KernelNodeParams* params) {
  auto& nodes = static_cast<Graph*>(graph)->nodes;
  calls += "node after";
  for (size_t i = 0; i < count; i++) {
    auto found = std::find(nodes.begin(), nodes.end(), static_cast<Node*>(after[i]));
    if (found == nodes.end()) return 1;
    calls += " " + std::to_string(found - nodes.begin());
  }
  calls += "\n";
  auto* made = new Node(kernel_node(params->function, params->grid[0], params->parameters));
  nodes.push_back(made);
  *node = made;
  return 0;
}

// The executable graph is the graph itself: its nodes are told in place.
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  calls += "build " + std::to_string(static_cast<Graph*>(graph)->nodes.size()) + " " +
           std::to_string(capture_mode) + "\n";
  if (refusing == 3) return 801;
  *executable = graph;
  return 0;
}

int cuGraphExecDestroy(void*) { return 0; }

int cuGraphDestroy(void* graph) {
  calls += "drop\n";
  graphs--;
  for (Node* node : static_cast<Graph*>(graph)->nodes) delete node;
  delete static_cast<Graph*>(graph);
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return 0;
}

int cuCtxGetCurrent(void** found) {
  *found = context;
  return 0;
}

int cuDeviceGet(int* handle, int number) {
  *handle = number + 40;
  return 0;
}

int cuDevicePrimaryCtxRetain(void** found, int handle) {
  calls += "context of " + std::to_string(handle - 40) + "\n";
  *found = &kernels;
  return 0;
}

int cuCtxSetCurrent(void* given) {
  context = given;
  return 0;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == 910 ? "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" : "CUDA_ERROR_ILLEGAL_ADDRESS";
  return 0;
}

int cuGetErrorString(int, const char** text) {
  *text = "as the test wants it";
  return 0;
}

// --- for tests ---------------------------------------------------------------------------------

void fake_new_thread() { context = nullptr; }

void* fake_kernel(int which) { return &kernels[which]; }

void fake_refuse(int what) { refusing = what; }

void fake_slow(int launches, int graphs) {
  slow_launches = launches;
  slow_graphs = graphs;
}

int fake_graphs() { return graphs; }

void fake_begin(void* stream) {
  capturing = new Graph;
  captured_stream = stream;
  last = nullptr;
}

void* fake_end() {
  Graph* done = capturing;
  capturing = nullptr;
  return done;
}

const char* fake_calls() {
  static std::string shown;
  shown = calls;
  calls.clear();
  return shown.c_str();
}
}
