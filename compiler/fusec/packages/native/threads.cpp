// The part of OpenMP that kernels call, on threads of the package's own: nothing else need be there.
//
// A region runs on as many threads as it asks for, one of which is the caller's. The others wait for
// the next region. Where they are busy (another thread of the program calls at the same time, or a
// region is within a region) the caller runs alone, as a team of one.

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define HIDDEN extern "C" __attribute__((visibility("hidden")))

namespace {

constexpr unsigned MOST = 256;

thread_local int number = 0;
thread_local int team = 1;

struct Pool {
    pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; // held by whoever runs a region
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of all below
    pthread_cond_t begin = PTHREAD_COND_INITIALIZER;
    pthread_cond_t end = PTHREAD_COND_INITIALIZER;
    void (*run)(void*) = nullptr;
    void* data = nullptr;
    unsigned long turn = 0;
    unsigned wanted = 0, running = 0, there = 1;
    pid_t owner = getpid();
};

// One is never taken down: threads wait in it when the process ends, or does not have them, forked.
Pool first;
Pool* pool = &first;

void* work(void* given)
{
    Pool& here = *pool;
    const unsigned mine = (unsigned)(size_t)given;
    unsigned long seen = 0; // a thread that is new takes part in the turn that it was made for
    pthread_mutex_lock(&here.lock);
    for (;;) {
        while (here.turn == seen) pthread_cond_wait(&here.begin, &here.lock);
        seen = here.turn;
        if (mine >= here.wanted) continue;
        auto* run = here.run;
        void* data = here.data;
        number = (int)mine;
        team = (int)here.wanted;
        pthread_mutex_unlock(&here.lock);
        run(data);
        pthread_mutex_lock(&here.lock);
        if (--here.running == 0) pthread_cond_signal(&here.end);
    }
}

bool start(unsigned mine)
{
    // Signals are the program's own threads' to handle.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t made;
    const bool there = pthread_create(&made, nullptr, work, (void*)(size_t)mine) == 0;
    if (there) pthread_detach(made);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return there;
}

void alone(void (*run)(void*), void* data)
{
    const int before = number, others = team;
    number = 0;
    team = 1;
    run(data);
    number = before;
    team = others;
}

// After a fork there are no threads, and a lock may be held by one that is not there.
Pool* own_pool()
{
    Pool* found = __atomic_load_n(&pool, __ATOMIC_ACQUIRE);
    if (found->owner == getpid()) return found;
    Pool* made = (Pool*)calloc(1, sizeof(Pool));
    if (!made) return nullptr;
    *made = Pool{};
    if (!__atomic_compare_exchange_n(&pool, &found, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        free(made);
        return found;
    }
    return made;
}

} // namespace

HIDDEN int omp_get_thread_num() { return number; }
HIDDEN int omp_get_num_threads() { return team; }

HIDDEN void GOMP_parallel(void (*run)(void*), void* data, unsigned threads, unsigned)
{
    if (threads > MOST) threads = MOST;
    Pool* found = threads > 1 && team == 1 ? own_pool() : nullptr;
    if (!found || pthread_mutex_trylock(&found->busy) != 0) return alone(run, data);
    Pool& here = *found;
    pthread_mutex_lock(&here.lock);
    while (here.there < threads && start(here.there)) ++here.there;
    if (threads > here.there) threads = here.there; // the system has no more threads
    here.run = run;
    here.data = data;
    here.wanted = threads;
    here.running = threads - 1;
    ++here.turn;
    pthread_cond_broadcast(&here.begin);
    pthread_mutex_unlock(&here.lock);
    number = 0;
    team = (int)threads;
    run(data);
    team = 1;
    pthread_mutex_lock(&here.lock);
    while (here.running) pthread_cond_wait(&here.end, &here.lock);
    pthread_mutex_unlock(&here.lock);
    pthread_mutex_unlock(&here.busy);
}
