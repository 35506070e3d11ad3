/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits at a fixed rate: every millisecond one thread awakes and hands a turn to another and
 * back, often enough for so many waits a second; the rest of the time both sleep.
 *
 *     load WAITS_PER_SECOND [THREADS [PROCESSES]]
 *
 * THREADS more in every process awake once a second each. Without waits (0) nothing else is
 * done. Prints "ready" when all are there, ends when its standard input does.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PERIOD_NS 1000000ll
#define MAX_THREADS 4096
#define MAX_PROCESSES 64

static atomic_int turn;
static int trips;

static void futex(int op, int value)
{
	syscall(SYS_futex, &turn, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void pass_to(int other)
{
	turn = other;
	futex(FUTEX_WAKE, 1);
}

static void await(int mine)
{
	int now;

	while ((now = turn) != mine)
		futex(FUTEX_WAIT, now);
}

static void pin(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((int)sysconf(_SC_NPROCESSORS_ONLN) - 1, &set);
	sched_setaffinity(0, sizeof(set), &set);
	prctl(PR_SET_TIMERSLACK, 1);
}

static void *answer(void *unused)
{
	(void)unused;
	pin();
	for (;;) {
		await(1);
		pass_to(0);
	}
	return NULL;
}

static void *beat(void *unused)
{
	struct timespec due;

	(void)unused;
	pin();
	clock_gettime(CLOCK_MONOTONIC, &due);
	for (;;) {
		int64_t next = due.tv_nsec + PERIOD_NS;

		due.tv_sec += next / 1000000000;
		due.tv_nsec = next % 1000000000;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
		for (int i = 0; i < trips; i++) {
			pass_to(1);
			await(0);
		}
	}
	return NULL;
}

static void *rest(void *number)
{
	struct timespec first = { .tv_nsec = 1000000ll * ((intptr_t)number * 37 % 1000) };
	struct timespec each = { .tv_sec = 1 };

	nanosleep(&first, NULL);
	for (;;)
		nanosleep(&each, NULL);
	return NULL;
}

static void start(void *(*body)(void *), intptr_t number)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 1 << 16);
	if (pthread_create(&thread, &attr, body, (void *)number))
		abort();
	pthread_attr_destroy(&attr);
}

int main(int argc, char **argv)
{
	int rate = argc > 1 ? atoi(argv[1]) : -1, threads = argc > 2 ? atoi(argv[2]) : 0;
	int processes = argc > 3 ? atoi(argv[3]) : 1;
	char line[16];

	if (rate < 0 || threads < 0 || threads > MAX_THREADS || processes < 1 ||
	    processes > MAX_PROCESSES)
		return 2;
	for (int i = 1; i < processes; i++) {
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, 9);
			rate = 0;
			break;
		}
	}
	/* A turn there and back is two waits, and the sleep between is one. */
	trips = rate ? (int)((rate * PERIOD_NS / 1000000000 - 1) / 2) : 0;
	for (intptr_t i = 0; i < threads; i++)
		start(rest, i);
	if (rate) {
		start(answer, 0);
		start(beat, 0);
	}
	write(STDOUT_FILENO, "ready\n", 6);
	while (fgets(line, sizeof(line), stdin))
		;
	return 0;
}
