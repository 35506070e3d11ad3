// SPDX-License-Identifier: Apache-2.0
/*
 * A process whose memory and CPU are put where they do not belong, for a machine of two nodes:
 * it runs on CPU 0, which is node 0's, and most of its memory is on node 1. At each SIGUSR1 it
 * moves to the other CPU. Links statically: the machine it runs on has no libraries.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MIB = 1 << 20, BIND = 2 };

static void on_node(void *start, size_t bytes, unsigned node)
{
	unsigned long mask = 1ul << node;

	if (syscall(SYS_mbind, start, bytes, BIND, &mask, 64ul, 0ul) != 0) {
		perror("mbind");
		exit(1);
	}
	memset(start, 1, bytes);
}

static char *mapped(size_t bytes, int flags, int fd)
{
	char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (start == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return start;
}

static void on_cpu(unsigned cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0) {
		perror("sched_setaffinity");
		exit(1);
	}
}

int main(void)
{
	sigset_t moves;
	unsigned cpu = 0;
	int fd = open("/run/placed.data", O_RDWR | O_CREAT, 0600), got;

	sigemptyset(&moves);
	sigaddset(&moves, SIGUSR1);
	sigprocmask(SIG_BLOCK, &moves, NULL);
	on_cpu(cpu);
	if (fd < 0 || ftruncate(fd, MIB) != 0) {
		perror("/run/placed.data");
		return 1;
	}
	on_node(mapped(8 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1), 8 * MIB, 1);
	on_node(mapped(2 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1), 2 * MIB, 0);
	on_node(mapped(4 * MIB, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1), 4 * MIB, 1);
	memset(mapped(MIB, MAP_SHARED, fd), 1, MIB);
	memset(malloc(MIB / 16), 1, MIB / 16); /* below malloc's threshold: the heap */
	for (;;) {
		printf("PLACED %u\n", cpu);
		fflush(stdout);
		if (sigwait(&moves, &got) != 0)
			return 1;
		cpu = !cpu;
		on_cpu(cpu);
	}
}
