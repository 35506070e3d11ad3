/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads that hand a turn to each other as fast as they can, on one CPU: every turn is a
 * wait, and nothing else is done, so what tracing a wait costs shows undiluted.
 *
 *     stress futex|epoll SECONDS [PAIRS]
 *
 * Prints "ready", begins when a line comes, prints turns and the CPU time they took as JSON.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_PAIRS 64

struct pair {
	_Alignas(64) atomic_int turn;
	int wake[2], poll[2];
	int cpu;
};

struct side {
	struct pair *pair;
	int mine;
	uint64_t turns;
};

static atomic_int stop;

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static long futex(atomic_int *word, int op, int value)
{
	return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void *futex_side(void *argument)
{
	struct side *side = argument;
	atomic_int *turn = &side->pair->turn;

	pin(side->pair->cpu);
	while (!stop) {
		while (*turn != side->mine && !stop)
			futex(turn, FUTEX_WAIT, !side->mine);
		*turn = !side->mine;
		futex(turn, FUTEX_WAKE, 1);
		side->turns++;
	}
	futex(turn, FUTEX_WAKE, 2);
	return NULL;
}

static void hand_over(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

static void *epoll_side(void *argument)
{
	struct side *side = argument;
	struct pair *pair = side->pair;
	struct epoll_event event;
	uint64_t count;

	pin(pair->cpu);
	if (side->mine == 0)
		hand_over(pair->wake[1]);
	while (!stop) {
		if (epoll_wait(pair->poll[side->mine], &event, 1, 100) < 1)
			continue;
		if (read(pair->wake[side->mine], &count, sizeof(count)) != sizeof(count))
			abort();
		hand_over(pair->wake[!side->mine]);
		side->turns++;
	}
	return NULL;
}

static void open_pair(struct pair *pair)
{
	for (int i = 0; i < 2; i++) {
		struct epoll_event event = { .events = EPOLLIN };

		pair->wake[i] = eventfd(0, EFD_NONBLOCK);
		pair->poll[i] = epoll_create1(0);
		if (epoll_ctl(pair->poll[i], EPOLL_CTL_ADD, pair->wake[i], &event))
			abort();
	}
}

int main(int argc, char **argv)
{
	static struct pair pairs[MAX_PAIRS];
	static struct side sides[2 * MAX_PAIRS];
	pthread_t threads[2 * MAX_PAIRS];
	void *(*body)(void *);
	double seconds, begun, cpu;
	int count, cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t turns = 0;
	char line[16];

	if (argc < 3)
		return 2;
	body = strcmp(argv[1], "epoll") ? futex_side : epoll_side;
	seconds = atof(argv[2]);
	count = argc > 3 ? atoi(argv[3]) : 1;
	if (count < 1 || count > MAX_PAIRS || seconds > 60)
		return 2;
	printf("ready\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	begun = now(CLOCK_MONOTONIC);
	cpu = now(CLOCK_PROCESS_CPUTIME_ID);
	for (int i = 0; i < 2 * count; i++) {
		struct pair *pair = &pairs[i / 2];

		pair->cpu = (cpus - 1 - i / 2 % cpus) % cpus;
		if (i % 2 == 0)
			open_pair(pair);
		sides[i] = (struct side){ .pair = pair, .mine = i % 2 };
	}
	for (int i = 0; i < 2 * count; i++)
		pthread_create(&threads[i], NULL, body, &sides[i]);
	usleep((useconds_t)(seconds * 1e6));
	stop = 1;
	for (int i = 0; i < 2 * count; i++)
		futex(&sides[i].pair->turn, FUTEX_WAKE, 2);
	for (int i = 0; i < 2 * count; i++) {
		pthread_join(threads[i], NULL);
		turns += sides[i].turns;
	}
	printf("{\"turns\": %llu, \"cpu_s\": %.6f, \"wall_s\": %.6f}\n", (unsigned long long)turns,
	       now(CLOCK_PROCESS_CPUTIME_ID) - cpu, now(CLOCK_MONOTONIC) - begun);
	return 0;
}
