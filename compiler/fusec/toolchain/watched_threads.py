"""OpenMP's functions over plain threads, which ThreadSanitizer knows of.

It does not know what waits for what within libgomp, and would take each barrier for nothing.  A
kernel that asks for a function which is not here cannot be linked, and is not looked at.
"""

from __future__ import annotations

# ``$alone``: whether a team of one is one; where sizes are symbolic, more would be asked for at
# larger ones. Three threads whatever is asked for: two of them are never neighbours in a round.
WATCHED_THREADS = r"""
#include <pthread.h>

namespace {
constexpr int many = 3;
struct Team {
    int size;
    pthread_barrier_t barrier;
    pthread_mutex_t lock;
    long next, end, chunk, step;
    unsigned loops, singles;
};
struct Task {
    void (*body)(void*);
    void* data;
    Team* team;
    int number;
};
thread_local Team* team = nullptr;
thread_local int number = 0;
thread_local unsigned loops = 0, singles = 0;
pthread_mutex_t everybody = PTHREAD_MUTEX_INITIALIZER;

void* run(void* given)
{
    const Task* task = (const Task*)given;
    team = task->team;
    number = task->number;
    loops = singles = 0;
    task->body(task->data);
    return nullptr;
}

void start(Team& made, int size)
{
    made.size = size;
    pthread_barrier_init(&made.barrier, nullptr, size);
    pthread_mutex_init(&made.lock, nullptr);
}
} // namespace

extern "C" {
int omp_get_thread_num() { return number; }
int omp_get_num_threads() { return team ? team->size : 1; }
int omp_get_max_threads() { return many; }
int omp_get_num_procs() { return many; }
int omp_in_parallel() { return team && team->size > 1; }
int omp_get_level() { return team != nullptr; }

void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned)
{
    Team made{};
    if (team || ($alone && threads == 1)) { // a team within a team is one thread
        Team* outer = team;
        const int own = number;
        const unsigned l = loops, s = singles;
        start(made, 1);
        team = &made;
        number = 0;
        loops = singles = 0;
        body(data);
        team = outer;
        number = own;
        loops = l;
        singles = s;
        return;
    }
    start(made, many);
    pthread_t ids[many];
    Task tasks[many];
    for (int i = 0; i < many; ++i) {
        tasks[i] = {body, data, &made, i};
        if (pthread_create(&ids[i], nullptr, run, &tasks[i])) __builtin_trap();
    }
    for (int i = 0; i < many; ++i) pthread_join(ids[i], nullptr);
}

void GOMP_barrier()
{
    if (team) pthread_barrier_wait(&team->barrier);
}

void GOMP_critical_start() { pthread_mutex_lock(&everybody); }
void GOMP_critical_end() { pthread_mutex_unlock(&everybody); }
void GOMP_critical_name_start(void**) { pthread_mutex_lock(&everybody); }
void GOMP_critical_name_end(void**) { pthread_mutex_unlock(&everybody); }
void GOMP_atomic_start() { pthread_mutex_lock(&everybody); }
void GOMP_atomic_end() { pthread_mutex_unlock(&everybody); }

bool GOMP_single_start()
{
    if (!team) return true;
    pthread_mutex_lock(&team->lock);
    const bool mine = singles++ == team->singles;
    team->singles += mine;
    pthread_mutex_unlock(&team->lock);
    return mine;
}

bool GOMP_loop_dynamic_next(long* first, long* last)
{
    pthread_mutex_lock(&team->lock);
    const bool up = team->step > 0;
    const bool more = up ? team->next < team->end : team->next > team->end;
    if (more) {
        long to = team->next + team->chunk * team->step;
        if (up ? to > team->end : to < team->end) to = team->end;
        *first = team->next;
        *last = team->next = to;
    }
    pthread_mutex_unlock(&team->lock);
    return more;
}

bool GOMP_loop_dynamic_start(long from, long to, long step, long chunk, long* first, long* last)
{
    pthread_mutex_lock(&team->lock);
    if (team->loops == loops++) {
        ++team->loops;
        team->next = from;
        team->end = to;
        team->step = step;
        team->chunk = chunk > 0 ? chunk : 1;
    }
    pthread_mutex_unlock(&team->lock);
    return GOMP_loop_dynamic_next(first, last);
}

#define LOOP(name) \
    bool GOMP_loop_##name##_start(long s, long e, long i, long c, long* f, long* l) \
    { \
        return GOMP_loop_dynamic_start(s, e, i, c, f, l); \
    } \
    bool GOMP_loop_##name##_next(long* f, long* l) { return GOMP_loop_dynamic_next(f, l); }
LOOP(guided)
LOOP(nonmonotonic_dynamic)
LOOP(nonmonotonic_guided)
#undef LOOP

void GOMP_loop_end_nowait() {}
void GOMP_loop_end() { GOMP_barrier(); }
} // extern "C"
"""

__all__ = ["WATCHED_THREADS"]
