// What clang calls for OpenMP, on the runtime that torch has loaded.
//
// g++ calls libgomp, clang calls libomp; torch's wheels for Linux bring libgomp. Two runtimes in one
// process are two teams of threads that wait for work beside each other, so a kernel that clang builds
// is linked with this file, which answers clang's calls with libgomp's. What is not here (tasks,
// sections, `ordered`) the linker refuses by name.
//
// The calls and their meaning are LLVM's: openmp/runtime/src/kmp_csupport.cpp and kmp_sched.cpp;
// loops are shared out as libgomp does, the first threads taking one turn more.

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#define HIDDEN extern "C" __attribute__((visibility("hidden")))

extern "C" {
void GOMP_parallel(void (*run)(void*), void* data, unsigned threads, unsigned flags);
void GOMP_barrier(void);
void GOMP_critical_name_start(void** name);
void GOMP_critical_name_end(void** name);
bool GOMP_single_start(void);
bool GOMP_loop_dynamic_start(long, long, long, long, long*, long*);
bool GOMP_loop_guided_start(long, long, long, long, long*, long*);
bool GOMP_loop_dynamic_next(long*, long*);
bool GOMP_loop_guided_next(long*, long*);
void GOMP_loop_end_nowait(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
}

// Kernels are searched for variables that outlive a call: by this name these are known as ours.
namespace fusec_openmp {
// `if (false)` on a region: it runs on this thread alone.
static thread_local int alone = 0;
static thread_local unsigned wanted = 0;

// A loop whose turns are handed out as threads ask for them, by their numbers: any type will do.
struct Handed {
    uint64_t base, step;
    long turns, chunk;
    bool guided, started, alone;
};
static thread_local Handed handed;
}

namespace {

using fusec_openmp::alone;
using fusec_openmp::handed;
using fusec_openmp::Handed;
using fusec_openmp::wanted;

constexpr int MOST = 64; // captured variables of a region
constexpr int STATIC_CHUNKED = 33, STATIC = 34, GUIDED = 36;

struct Region {
    void* body;
    int count;
    void* captured[MOST];
};

template <int... I> struct Places {};
template <int N, int... I> struct Upto : Upto<N - 1, N - 1, I...> {};
template <int... I> struct Upto<0, I...> { using type = Places<I...>; };

template <int... I> void call(Region& region, int thread, Places<I...>)
{
    // More arguments than the body takes are harmless: whoever calls gives and takes them away.
    int team = 0;
    using Body = void (*)(int*, int*, decltype((void)I, (void*)nullptr)...);
    ((Body)region.body)(&thread, &team, region.captured[I]...);
}

void run(void* data)
{
    Region& region = *(Region*)data;
    int thread = omp_get_thread_num();
    if (region.count <= 8) call(region, thread, Upto<8>::type());
    else if (region.count <= 24) call(region, thread, Upto<24>::type());
    else call(region, thread, Upto<MOST>::type());
}

int threads() { return alone ? 1 : omp_get_num_threads(); }
int thread() { return alone ? 0 : omp_get_thread_num(); }

// T counts; S is its signed form.
template <class T, class S, class U>
void share(int schedule, int* last, T* lower, T* upper, S* stride, S step, S chunk)
{
    schedule &= ~(3 << 29); // what is said of the order of turns
    bool none = step > 0 ? *upper < *lower : *lower < *upper;
    if (none) {
        *last = 0;
        *stride = step;
        return;
    }
    U turns = step > 0 ? ((U)*upper - (U)*lower) / (U)step + 1 : ((U)*lower - (U)*upper) / (U)(0 - (U)step) + 1;
    U count = (U)threads(), own = (U)thread();
    if (schedule == STATIC_CHUNKED) {
        if (chunk < 1) chunk = 1;
        U span = (U)chunk * (U)step;
        *stride = (S)(span * count);
        *lower = (T)((U)*lower + span * own);
        *upper = (T)((U)*lower + span - (U)step);
        *last = (turns - 1) / (U)chunk % count == own;
        return;
    }
    U least = turns / count, rest = turns % count;
    U before = own * least + (own < rest ? own : rest), mine = least + (own < rest);
    *stride = (S)(turns * (U)step);
    *lower = (T)((U)*lower + before * (U)step);
    *upper = (T)((U)*lower + mine * (U)step - (U)step);
    *last = mine != 0 && before + mine == turns;
    if (mine == 0) { // no turn, whatever the type: one past the end of one
        *lower = step > 0 ? 1 : 0;
        *upper = step > 0 ? 0 : 1;
    }
}

template <class T, class S, class U> void hand_out(int schedule, T lower, T upper, S step, S chunk)
{
    bool none = step > 0 ? upper < lower : lower < upper;
    U turns = step > 0 ? ((U)upper - (U)lower) / (U)step : ((U)lower - (U)upper) / (U)(0 - (U)step);
    handed.base = (uint64_t)lower, handed.step = (uint64_t)step;
    handed.turns = none ? 0 : (long)turns + 1, handed.chunk = chunk < 1 ? 1 : (long)chunk;
    handed.guided = (schedule & ~(3 << 29)) == GUIDED, handed.started = false, handed.alone = alone != 0;
}

template <class T, class S> int next(int* last, T* lower, T* upper, S* stride)
{
    Handed& loop = handed;
    long first = 0, end = loop.turns;
    bool more;
    if (loop.alone) more = !loop.started && loop.turns != 0;
    else if (loop.started) more = (loop.guided ? GOMP_loop_guided_next : GOMP_loop_dynamic_next)(&first, &end);
    else more = (loop.guided ? GOMP_loop_guided_start : GOMP_loop_dynamic_start)(0, loop.turns, 1, loop.chunk, &first, &end);
    loop.started = true;
    if (!more) {
        if (!loop.alone) GOMP_loop_end_nowait();
        return 0;
    }
    *lower = (T)(loop.base + (uint64_t)first * loop.step);
    *upper = (T)(loop.base + (uint64_t)(end - 1) * loop.step);
    *stride = (S)loop.step;
    *last = end == loop.turns;
    return 1;
}

} // namespace

HIDDEN int __kmpc_global_thread_num(void*) { return thread(); }
HIDDEN void __kmpc_push_num_threads(void*, int, int count) { wanted = count > 0 ? count : 0; }
HIDDEN void __kmpc_push_proc_bind(void*, int, int) {}

HIDDEN void __kmpc_fork_call(void*, int count, void* body, ...)
{
    Region region;
    region.body = body;
    region.count = count;
    if (count > MOST) __builtin_trap();
    va_list given;
    va_start(given, body);
    for (int i = 0; i < count; ++i) region.captured[i] = va_arg(given, void*);
    va_end(given);
    for (int i = count; i < MOST; ++i) region.captured[i] = nullptr;
    unsigned many = wanted;
    wanted = 0;
    int before = alone;
    alone = 0;
    GOMP_parallel(run, &region, many, 0);
    alone = before;
}

HIDDEN void __kmpc_serialized_parallel(void*, int) { ++alone; wanted = 0; }
HIDDEN void __kmpc_end_serialized_parallel(void*, int) { --alone; }

#define SHARE(name, T, S, U)                                                                              \
    HIDDEN void __kmpc_for_static_init_##name(                                                            \
        void*, int, int schedule, int* last, T* lower, T* upper, S* stride, S step, S chunk)              \
    {                                                                                                     \
        share<T, S, U>(schedule, last, lower, upper, stride, step, chunk);                                \
    }
SHARE(4, int32_t, int32_t, uint32_t)
SHARE(4u, uint32_t, int32_t, uint32_t)
SHARE(8, int64_t, int64_t, uint64_t)
SHARE(8u, uint64_t, int64_t, uint64_t)
HIDDEN void __kmpc_for_static_fini(void*, int) {}

#define HAND(name, T, S, U)                                                                               \
    HIDDEN void __kmpc_dispatch_init_##name(void*, int, int schedule, T lower, T upper, S step, S chunk)  \
    {                                                                                                     \
        hand_out<T, S, U>(schedule, lower, upper, step, chunk);                                           \
    }                                                                                                     \
    HIDDEN int __kmpc_dispatch_next_##name(void*, int, int* last, T* lower, T* upper, S* stride)          \
    {                                                                                                     \
        return next<T, S>(last, lower, upper, stride);                                                    \
    }                                                                                                     \
    HIDDEN void __kmpc_dispatch_fini_##name(void*, int) {}
HAND(4, int32_t, int32_t, uint32_t)
HAND(4u, uint32_t, int32_t, uint32_t)
HAND(8, int64_t, int64_t, uint64_t)
HAND(8u, uint64_t, int64_t, uint64_t)
HIDDEN void __kmpc_dispatch_deinit(void*, int) {}

HIDDEN void __kmpc_barrier(void*, int) { if (!alone) GOMP_barrier(); }
HIDDEN void __kmpc_flush(void*) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
HIDDEN int __kmpc_master(void*, int) { return thread() == 0; }
HIDDEN void __kmpc_end_master(void*, int) {}
HIDDEN int __kmpc_masked(void*, int, int only) { return thread() == only; }
HIDDEN void __kmpc_end_masked(void*, int) {}
HIDDEN int __kmpc_single(void*, int) { return alone || GOMP_single_start(); }
HIDDEN void __kmpc_end_single(void*, int) {}

// A name is 32 bytes of zeros, of which libgomp takes a pointer for its lock.
HIDDEN void __kmpc_critical(void*, int, void** name) { GOMP_critical_name_start(name); }
HIDDEN void __kmpc_critical_with_hint(void*, int, void** name, uint32_t) { GOMP_critical_name_start(name); }
HIDDEN void __kmpc_end_critical(void*, int, void** name) { GOMP_critical_name_end(name); }

// One thread after the other adds what it has to the result.
HIDDEN int __kmpc_reduce_nowait(void*, int, int, size_t, void*, void*, void** name)
{
    GOMP_critical_name_start(name);
    return 1;
}
HIDDEN void __kmpc_end_reduce_nowait(void*, int, void** name) { GOMP_critical_name_end(name); }
HIDDEN int __kmpc_reduce(void*, int, int, size_t, void*, void*, void** name)
{
    GOMP_critical_name_start(name);
    return 1;
}
HIDDEN void __kmpc_end_reduce(void* at, int own, void** name)
{
    GOMP_critical_name_end(name);
    __kmpc_barrier(at, own);
}
