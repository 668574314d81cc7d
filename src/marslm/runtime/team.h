// The threads that run a step together: who they are, how they share work and wait for one another.

#include <limits.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { SPINS = 2000 };

typedef struct {
    atomic_int arrived, round, asleep;
} Meeting;

typedef struct {
    int thread, threads;
    Meeting *meeting;
} Team;

static Team team_at(Meeting *meeting) {
    return (Team){omp_get_thread_num(), omp_get_num_threads(), meeting};
}

static void sleep_while(atomic_int *round, int now) {
#ifdef __linux__
    syscall(SYS_futex, round, FUTEX_WAIT_PRIVATE, now, (void *)0, (void *)0, 0);
#else
    (void)round, (void)now;
    sched_yield();
#endif
}

static void wake_all(atomic_int *round) {
#ifdef __linux__
    syscall(SYS_futex, round, FUTEX_WAKE_PRIVATE, INT_MAX, (void *)0, (void *)0, 0);
#else
    (void)round;
#endif
}

// Waits for all threads. OpenMP's own barrier spins for milliseconds; on a machine with other work
// the thread that is waited for may need this very core, and a step then takes many times as long.
// So a thread spins for some tens of microseconds, enough on an idle machine, and then sleeps.
static void meet(Team team) {
    if (team.threads == 1) return;
    Meeting *meeting = team.meeting;
    const int round = atomic_load(&meeting->round);
    if (atomic_fetch_add(&meeting->arrived, 1) + 1 == team.threads) {
        atomic_store(&meeting->arrived, 0);
        atomic_store(&meeting->round, round + 1);
        if (atomic_load(&meeting->asleep)) wake_all(&meeting->round);
        return;
    }
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&meeting->round, memory_order_acquire) != round) return;
        _mm_pause();
    }
    atomic_fetch_add(&meeting->asleep, 1);
    while (atomic_load(&meeting->round) == round) sleep_while(&meeting->round, round);
    atomic_fetch_sub(&meeting->asleep, 1);
}

// `for` over this thread's share of `count` things, in one piece.
#define FOR_SHARE(i, count) \
    for (int64_t i = (count) * team.thread / team.threads, \
                 i##_end = (count) * (team.thread + 1) / team.threads; \
         i < i##_end; i++)
