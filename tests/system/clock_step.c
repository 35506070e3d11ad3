/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wall clock that a test can set, for one process: loaded before the C library, it adds the
 * seconds that the file named by CLOCK_STEP holds to whatever CLOCK_REALTIME says. The machine's
 * own clock is everybody's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static int64_t step(void)
{
	static volatile int64_t *shared;

	if (!shared) {
		const char *path = getenv("CLOCK_STEP");
		const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
		void *at = fd < 0 ? MAP_FAILED
				  : mmap(NULL, sizeof(*shared), PROT_READ, MAP_SHARED, fd, 0);

		if (at == MAP_FAILED)
			abort();
		shared = at;
	}
	return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static int (*real)(clockid_t, struct timespec *);

	if (!real)
		real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	const int done = real(clock, now);

	if (done == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += step();
	return done;
}

time_t time(time_t *out)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (out)
		*out = now.tv_sec;
	return now.tv_sec;
}

int gettimeofday(struct timeval *now, void *zone)
{
	struct timespec exact;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &exact);
	now->tv_sec = exact.tv_sec;
	now->tv_usec = exact.tv_nsec / 1000;
	return 0;
}
