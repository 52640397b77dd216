// Memory of large tensors on the CPU, used again when nobody holds it: an allocator that stands
// before torch's own, and does something only while a compiled graph runs. A library of its own,
// the only one that needs torch's headers; called by memory.py.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>

namespace {

constexpr size_t kPage = 4096, kHugePage = 2 << 20;

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

thread_local int depth = 0;  // how many compiled graphs this thread runs, one inside of another

struct Free {
  void* place;
  double since;
};

// Every block is mapped by itself. A block is in `held_` or, by its size, in `free_`.
class Pool final : public c10::Allocator {
 public:
  explicit Pool(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t wanted) override {
    if (!depth || wanted < smallest_) return base_->allocate(wanted);
    size_t size = rounded(wanted);
    void* place = take(&size);
    if (!place) place = map(size);
    if (!place) return base_->allocate(wanted);  // which says that there is no more
    {
      std::lock_guard<std::mutex> guard(lock_);
      held_[place] = size;
      in_use_ += size;
    }
    report(place, static_cast<int64_t>(size));
    return {place, place, &Pool::give_back, c10::Device(c10::DeviceType::CPU)};
  }

  // Of what raw_allocate() returned, of this allocator or, before it was there, of the other.
  c10::DeleterFnPtr raw_deleter() const override { return &Pool::give_back; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void limit(size_t smallest, size_t most, double seconds) {
    smallest_ = smallest;
    std::lock_guard<std::mutex> guard(lock_);
    most_ = most;
    seconds_ = seconds;
    trim();
  }

  void count(size_t* held, size_t* kept) {
    std::lock_guard<std::mutex> guard(lock_);
    *held = in_use_;
    *kept = kept_;
  }

  // A child process has one thread, which must not wait for another's lock.
  void before_fork() { lock_.lock(); }
  void after_fork(bool child) {
    if (child) sweeping_ = false;
    lock_.unlock();
  }

  static Pool* the;

 private:
  static void give_back(void* place);

  static size_t rounded(size_t wanted) {
    size_t unit = kPage;
    while (unit * 32 < wanted) unit *= 2;  // at most a sixteenth more
    return (wanted + unit - 1) / unit * unit;
  }

  static void report(void* place, int64_t size) {
    if (c10::memoryProfilingEnabled()) {
      c10::reportMemoryUsageToProfiler(place, size, 0, 0, c10::Device(c10::DeviceType::CPU));
    }
  }

  void* take(size_t* size) {
    std::lock_guard<std::mutex> guard(lock_);
    trim();
    auto found = free_.lower_bound(*size);
    if (found == free_.end() || found->first > *size + *size / 8) return nullptr;
    void* place = found->second.place;
    *size = found->first;
    kept_ -= found->first;
    free_.erase(found);
    return place;
  }

  static void* map(size_t size) {
    bool huge = size >= 2 * kHugePage;
    size_t asked = huge ? size + kHugePage : size;
    void* found = mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return nullptr;
    if (!huge) return found;
    auto begin = reinterpret_cast<uintptr_t>(found);
    uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    if (first > begin) munmap(found, first - begin);
    if (first + size < begin + asked) {
      munmap(reinterpret_cast<void*>(first + size), begin + asked - first - size);
    }
#ifdef MADV_HUGEPAGE
    madvise(reinterpret_cast<void*>(first), size, MADV_HUGEPAGE);
#endif
    return reinterpret_cast<void*>(first);
  }

  // What is too much, or nobody asked for in a while, goes back to the system: the oldest first.
  void trim() {
    double oldest_wanted = now() - seconds_;
    for (;;) {
      auto oldest = free_.end();
      for (auto each = free_.begin(); each != free_.end(); ++each) {
        if (oldest == free_.end() || each->second.since < oldest->second.since) oldest = each;
      }
      if (oldest == free_.end()) return;
      if (kept_ <= most_ && oldest->second.since >= oldest_wanted) return;
      munmap(oldest->second.place, oldest->first);
      kept_ -= oldest->first;
      free_.erase(oldest);
    }
  }

  // Have somebody look for what nobody asked for, until nothing is kept.
  void sweep() {
    if (sweeping_ || free_.empty()) return;
    sigset_t all, before;  // signals are for the threads of the program
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread(&Pool::sweep_until_empty, this).detach();
      sweeping_ = true;
    } catch (const std::system_error&) {  // no more threads: the next calls look instead
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void sweep_until_empty() {
    for (;;) {
      double pause;
      {
        std::lock_guard<std::mutex> guard(lock_);
        trim();
        if (free_.empty()) {
          sweeping_ = false;
          return;
        }
        pause = seconds_ / 2;
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    }
  }

  c10::Allocator* base_;
  std::atomic<size_t> smallest_{SIZE_MAX};
  size_t most_ = 0, kept_ = 0, in_use_ = 0;
  double seconds_ = 0;
  bool sweeping_ = false;
  std::multimap<size_t, Free> free_;
  std::unordered_map<void*, size_t> held_;
  std::mutex lock_;
};

Pool* Pool::the = nullptr;

void Pool::give_back(void* place) {
  Pool& pool = *the;
  size_t size = 0;
  {
    std::lock_guard<std::mutex> guard(pool.lock_);
    auto found = pool.held_.find(place);
    if (found != pool.held_.end()) {
      size = found->second;
      pool.held_.erase(found);
      pool.in_use_ -= size;
      pool.kept_ += size;
      pool.free_.emplace(size, Free{place, now()});
      pool.trim();
      pool.sweep();
    }
  }
  if (size) {
    report(place, -static_cast<int64_t>(size));
  } else {
    pool.base_->raw_deleter()(place);
  }
}

}  // namespace

extern "C" {

// Begin; nothing is pooled before a limit is set.
void fusec_memory_install() {
  if (Pool::the) return;
  Pool::the = new Pool(c10::GetCPUAllocator());  // never deleted: tensors outlive everything
  c10::SetCPUAllocator(Pool::the, 0);
  pthread_atfork([] { Pool::the->before_fork(); }, [] { Pool::the->after_fork(false); },
                 [] { Pool::the->after_fork(true); });
}

// Pool what has `smallest` bytes; keep at most `most` that nobody holds, and those for `seconds`.
void fusec_memory_limit(size_t smallest, size_t most, double seconds) {
  Pool::the->limit(smallest, most, seconds);
}

// Bytes that tensors hold, and that are kept for the next ones.
void fusec_memory_count(size_t* held, size_t* kept) { Pool::the->count(held, kept); }

void fusec_memory_enter() { depth++; }

void fusec_memory_leave() { depth--; }
}
