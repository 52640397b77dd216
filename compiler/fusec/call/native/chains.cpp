// Starts of kernels in a row, launched as one small graph that is told the parameters of each call.
// Where a launch costs the driver 4 us, a graph of one kernel costs 2 and each further one 0.3 (H200,
// a virtual machine); elsewhere a launch may be the cheaper one. So both ways are tried and timed.
// See tensors.cpp for what these files are.

#include <algorithm>
#include <atomic>
#include <chrono>

namespace {

constexpr int kRunsBefore = 4;    // without a graph: most plans that run so often run on
constexpr int kRunsOfEach = 8;    // timed of either way, in turns
constexpr int kMostChains = 512;  // alive at a time: each takes 0.1 MB of the device's memory

std::atomic<int> chains_alive{0};

// Whether starts may become graphs: not while the stream is being captured into somebody else's.
bool may_chain(const Plan* self, void* stream) {
  if (self->driver->chaining == kNever) return false;
  if (!stream) return true;  // the default stream cannot be captured
  int status = 0;
  uint64_t id;
  void* graph;
  void* const* last;
  size_t count;
  return !self->driver->capture_info(stream, &status, &id, &graph, &last, &count) && !status;
}

// Find the starts in a row.
void find_chains(Plan* self) {
  std::vector<Step>& steps = *self->steps;
  for (size_t i = 0; i < steps.size(); i++) {
    if (steps[i].kind != kLaunch || (i && steps[i - 1].kind == kLaunch)) continue;
    size_t end = i, working = 0;
    for (; end < steps.size() && steps[end].kind == kLaunch; end++) {
      working += does_something(steps[end]);
    }
    if (!working) continue;
    self->chains->push_back({end, nullptr, nullptr, {}, 0, 1e9, 1e9});
    steps[i].chain = &self->chains->back();
  }
}

void drop_chain(const Driver* driver, Chain* chain) {
  if (!chain->graph) return;
  int mode = kRelaxed;  // no other thread's capture minds
  driver->exchange_capture_mode(&mode);
  if (chain->executable) driver->destroy_executable(chain->executable);
  driver->destroy_graph(chain->graph);
  driver->exchange_capture_mode(&mode);
  chain->graph = chain->executable = nullptr;
  chain->nodes.clear();
  chains_alive--;
}

int build_chain(const Plan* self, Chain* chain, size_t begin, const Frame& frame) {
  const Driver* driver = self->driver;
  if (chains_alive++ >= kMostChains) {
    chains_alive--;
    return -1;
  }
  int mode = kRelaxed;
  driver->exchange_capture_mode(&mode);
  int error = driver->create_graph(&chain->graph, 0);
  // for each step the nodes that stand for it: its own, or those that one without work waits for
  std::vector<std::vector<void*>> standing(chain->end - begin);
  for (size_t i = begin; i < chain->end && !error; i++) {
    const Step& step = (*self->steps)[i];
    std::vector<void*> after;
    for (size_t back : step.after) {
      if (!back || back > i - begin) continue;
      for (void* each : standing[i - begin - back]) {
        if (std::find(after.begin(), after.end(), each) == after.end()) after.push_back(each);
      }
    }
    if (!does_something(step)) {
      standing[i - begin] = std::move(after);
      continue;
    }
    Node node{&step, nullptr, {}};
    for (const Place& place : step.places) node.values.push_back(value_of(place, frame));
    void* parameters[kMostParameters];
    KernelNodeParams wanted = node_params(step, node.values.data(), parameters);
    error = driver->add_kernel(&node.handle, chain->graph, after.data(), after.size(), &wanted);
    standing[i - begin] = {node.handle};
    chain->nodes.push_back(std::move(node));
  }
  if (!error) error = driver->instantiate(&chain->executable, chain->graph, 0);
  driver->exchange_capture_mode(&mode);
  if (!chain->graph) chains_alive--;
  if (error) drop_chain(driver, chain);
  return error;
}

int start_apart(const Plan* self, const Chain* chain, size_t begin, const Frame& frame,
                void* stream) {
  int error = 0;
  for (size_t i = begin; i < chain->end && !error; i++) {
    error = start(self->driver, (*self->steps)[i], frame, stream);
  }
  return error;
}

int start_joined(const Plan* self, Chain* chain, const Frame& frame, void* stream) {
  int error = 0;
  for (Node& node : chain->nodes) {
    int64_t values[kMostParameters];
    for (size_t i = 0; i < node.values.size(); i++) {
      values[i] = value_of(node.step->places[i], frame);
    }
    error = update_node(self->driver, chain->executable, &node, values, nullptr);
    if (error) return error;
  }
  return self->driver->launch_graph(chain->executable, stream);
}

// Whether this run is one of the graph's; builds it when its time has come. `timed` becomes whether
// the two ways are being compared.
bool choose_way(const Plan* self, Chain* chain, size_t begin, const Frame& frame, bool* timed) {
  *timed = false;
  if (chain->runs < 0) return chain->executable != nullptr;
  bool always = self->driver->chaining == kAlways;
  int number = chain->runs++ - (always ? 0 : kRunsBefore);
  if (number < 0) return false;
  if (number == 0) {  // the first launch takes the graph to the device: it is not timed
    bool built = !build_chain(self, chain, begin, frame);
    if (always || !built) chain->runs = -1;
    return built;
  }
  if (number > 2 * kRunsOfEach) {
    chain->runs = -1;
    if (chain->joined >= chain->apart) drop_chain(self->driver, chain);
    return chain->executable != nullptr;
  }
  *timed = true;
  return number % 2 == 0;
}

// Start the kernels of a chain in the way that was the quicker one; needs no Python. What was
// launched before a node is told something else, the driver has kept.
int run_chain(Plan* self, Chain* chain, size_t begin, const Frame& frame, void* stream) {
  std::lock_guard<std::mutex> alone(*self->lock);
  bool timed;
  bool joined = choose_way(self, chain, begin, frame, &timed);
  std::chrono::steady_clock::time_point from;
  if (timed) from = std::chrono::steady_clock::now();
  int error = joined ? start_joined(self, chain, frame, stream) : 0;
  if (error) {  // the driver refuses: not as a graph, then
    drop_chain(self->driver, chain);
    chain->runs = -1;
    joined = false;
  }
  if (!joined) error = start_apart(self, chain, begin, frame, stream);
  if (timed) {
    std::chrono::duration<double> spent = std::chrono::steady_clock::now() - from;
    double& shortest = joined ? chain->joined : chain->apart;
    shortest = std::min(shortest, spent.count());
  }
  return error;
}

}  // namespace
