/* Atomics, a pause for spinning, monotonic clocks, counters, and a futex where
 * the system has one.  The words lie in memory shared between processes, so the
 * futex calls are the shared ones (no FUTEX_PRIVATE_FLAG). */
#ifndef DPS_WAITING_H
#define DPS_WAITING_H

#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>

#if defined(__linux__) && !defined(DPS_PORTABLE)
#define DPS_FUTEX 1
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define DPS_FUTEX 0
#endif

#ifdef DPS_PORTABLE
#define DPS_IS_PORTABLE 1
#else
#define DPS_IS_PORTABLE 0
#endif

static inline int64_t dps_load(const int64_t *word) {
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}
static inline void dps_store(int64_t *word, int64_t value) {
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}
static inline int64_t dps_add(int64_t *word, int64_t value) {
    return __atomic_add_fetch(word, value, __ATOMIC_SEQ_CST);
}
static inline int dps_claim(int64_t *word, int64_t value) {
    int64_t expected = 0;
    return __atomic_compare_exchange_n(word, &expected, value, 0, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}
static inline int dps_replace(int64_t *word, int64_t expected, int64_t value) {
    return __atomic_compare_exchange_n(word, &expected, value, 0, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}
/* What has been read before is not read again after it, nor the other way round. */
static inline void dps_fence(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Counters with one writer: readers see some value that was there, in no order. */
static inline void dps_set(int64_t *word, int64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
static inline void dps_bump(int64_t *word, int64_t value) {
    dps_set(word, __atomic_load_n(word, __ATOMIC_RELAXED) + value);
}

static inline void dps_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Looks that a waiting thread takes before it offers its core to others. It has as many
 * as have been worth it: more after a wait that ended while the thread looked, fewer
 * after one that did not, for then the core may be another's. Only the thread writes it. */
enum { DPS_MOST_LOOKS = 2000, DPS_FEWEST_LOOKS = 20 };
static __thread int32_t dps_looks = DPS_MOST_LOOKS;

static inline void dps_looked(int worth_it) {
    if (worth_it)
        dps_looks = dps_looks < DPS_MOST_LOOKS / 2 ? 2 * dps_looks : DPS_MOST_LOOKS;
    else
        dps_looks = dps_looks > 2 * DPS_FEWEST_LOOKS ? dps_looks / 2 : DPS_FEWEST_LOOKS;
}

static inline double dps_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int64_t dps_nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline struct timespec dps_timespec(double seconds) {
    struct timespec t;
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    return t;
}

/* Let another thread have the core, if one wants it. A core that is offered to a thread
 * that computes is back after a slice of some milliseconds, whatever comes meanwhile; one
 * that sleeps has it as soon as it is woken. So after an offer that took so long
 * the thread makes none for a while, until `dps_crowded`, on the clock of `dps_now`. */
static __thread double dps_crowded = 0;

static inline void dps_yield(void) { sched_yield(); }

static inline double dps_offered(double before, double now) {
    if (now - before > 1e-3) dps_crowded = now + 0.1;
    return now;
}

/* Sleep until the bell is no longer `heard`, or rings for one of the bits, at
 * most for `seconds`. It may return early. */
static inline void dps_sleep(int32_t *bell, int32_t heard, uint32_t bits, double seconds) {
#if DPS_FUTEX
    struct timespec t = dps_timespec(dps_now() + seconds);
    syscall(SYS_futex, bell, FUTEX_WAIT_BITSET, heard, &t, NULL, bits);
#else
    struct timespec t = dps_timespec(seconds);
    (void)bell;
    (void)heard;
    (void)bits;
    nanosleep(&t, NULL);
#endif
}

/* Wake those that sleep for one of the bits. */
static inline void dps_wake(int32_t *bell, uint32_t bits) {
#if DPS_FUTEX
    syscall(SYS_futex, bell, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, bits);
#else
    (void)bell;
    (void)bits;
#endif
}

#endif
