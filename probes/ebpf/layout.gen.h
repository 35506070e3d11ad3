/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Made from layout.py by build.py: edit that and run it. */
#ifndef GPC_LAYOUT_GEN_H
#define GPC_LAYOUT_GEN_H

#define GPC_TARGET_WORDS 65536
#define GPC_MAX_CPUS 1024
#define GPC_CPU_WORDS 16
#define GPC_CONTROL_WORDS 8
#define GPC_CONFIG_WORDS 8
#define GPC_SUM_ENTRIES 16384
#define GPC_STATE_BYTES 168
#define GPC_SUM_KEY_BYTES 12
#define GPC_SUM_BYTES 48
#define GPC_STINTS_BYTES 200
#define GPC_REC_BYTES 80
#define GPC_MAP_MARK 0x47500000

#define GPC_KINDS 512
#if defined(__TARGET_ARCH_arm64)
#define GPC_KIND_TABLE \
	{ \
		[22] = GPC_WAIT_EPOLL, /* epoll_pwait */ \
		[29] = GPC_WAIT_IOCTL, /* ioctl */ \
		[63] = GPC_WAIT_READ, /* read */ \
		[64] = GPC_WAIT_WRITE, /* write */ \
		[65] = GPC_WAIT_READ, /* readv */ \
		[66] = GPC_WAIT_WRITE, /* writev */ \
		[67] = GPC_WAIT_READ, /* pread64 */ \
		[68] = GPC_WAIT_WRITE, /* pwrite64 */ \
		[69] = GPC_WAIT_READ, /* preadv */ \
		[70] = GPC_WAIT_WRITE, /* pwritev */ \
		[71] = GPC_WAIT_WRITE, /* sendfile */ \
		[72] = GPC_WAIT_SELECT, /* pselect6 */ \
		[73] = GPC_WAIT_POLL, /* ppoll */ \
		[75] = GPC_WAIT_WRITE, /* vmsplice */ \
		[76] = GPC_WAIT_READ, /* splice: fd_in */ \
		[82] = GPC_WAIT_WRITE, /* fsync */ \
		[83] = GPC_WAIT_WRITE, /* fdatasync */ \
		[84] = GPC_WAIT_WRITE, /* sync_file_range */ \
		[98] = GPC_WAIT_FUTEX, /* futex */ \
		[101] = GPC_WAIT_SLEEP, /* nanosleep */ \
		[115] = GPC_WAIT_SLEEP, /* clock_nanosleep */ \
		[202] = GPC_WAIT_READ, /* accept */ \
		[203] = GPC_WAIT_WRITE, /* connect */ \
		[206] = GPC_WAIT_WRITE, /* sendto */ \
		[207] = GPC_WAIT_READ, /* recvfrom */ \
		[211] = GPC_WAIT_WRITE, /* sendmsg */ \
		[212] = GPC_WAIT_READ, /* recvmsg */ \
		[242] = GPC_WAIT_READ, /* accept4 */ \
		[243] = GPC_WAIT_READ, /* recvmmsg */ \
		[269] = GPC_WAIT_WRITE, /* sendmmsg */ \
		[286] = GPC_WAIT_READ, /* preadv2 */ \
		[287] = GPC_WAIT_WRITE, /* pwritev2 */ \
		[426] = GPC_WAIT_IO_URING, /* io_uring_enter */ \
		[441] = GPC_WAIT_EPOLL, /* epoll_pwait2 */ \
		[449] = GPC_WAIT_FUTEX, /* futex_waitv */ \
		[455] = GPC_WAIT_FUTEX, /* futex_wait */ \
	}
#else
#define GPC_KIND_TABLE \
	{ \
		[0] = GPC_WAIT_READ, /* read */ \
		[1] = GPC_WAIT_WRITE, /* write */ \
		[7] = GPC_WAIT_POLL, /* poll */ \
		[16] = GPC_WAIT_IOCTL, /* ioctl */ \
		[17] = GPC_WAIT_READ, /* pread64 */ \
		[18] = GPC_WAIT_WRITE, /* pwrite64 */ \
		[19] = GPC_WAIT_READ, /* readv */ \
		[20] = GPC_WAIT_WRITE, /* writev */ \
		[23] = GPC_WAIT_SELECT, /* select */ \
		[35] = GPC_WAIT_SLEEP, /* nanosleep */ \
		[40] = GPC_WAIT_WRITE, /* sendfile */ \
		[42] = GPC_WAIT_WRITE, /* connect */ \
		[43] = GPC_WAIT_READ, /* accept */ \
		[44] = GPC_WAIT_WRITE, /* sendto */ \
		[45] = GPC_WAIT_READ, /* recvfrom */ \
		[46] = GPC_WAIT_WRITE, /* sendmsg */ \
		[47] = GPC_WAIT_READ, /* recvmsg */ \
		[74] = GPC_WAIT_WRITE, /* fsync */ \
		[75] = GPC_WAIT_WRITE, /* fdatasync */ \
		[202] = GPC_WAIT_FUTEX, /* futex */ \
		[230] = GPC_WAIT_SLEEP, /* clock_nanosleep */ \
		[232] = GPC_WAIT_EPOLL, /* epoll_wait */ \
		[270] = GPC_WAIT_SELECT, /* pselect6 */ \
		[271] = GPC_WAIT_POLL, /* ppoll */ \
		[275] = GPC_WAIT_READ, /* splice: fd_in */ \
		[277] = GPC_WAIT_WRITE, /* sync_file_range */ \
		[278] = GPC_WAIT_WRITE, /* vmsplice */ \
		[281] = GPC_WAIT_EPOLL, /* epoll_pwait */ \
		[288] = GPC_WAIT_READ, /* accept4 */ \
		[295] = GPC_WAIT_READ, /* preadv */ \
		[296] = GPC_WAIT_WRITE, /* pwritev */ \
		[299] = GPC_WAIT_READ, /* recvmmsg */ \
		[307] = GPC_WAIT_WRITE, /* sendmmsg */ \
		[327] = GPC_WAIT_READ, /* preadv2 */ \
		[328] = GPC_WAIT_WRITE, /* pwritev2 */ \
		[426] = GPC_WAIT_IO_URING, /* io_uring_enter */ \
		[441] = GPC_WAIT_EPOLL, /* epoll_pwait2 */ \
		[449] = GPC_WAIT_FUTEX, /* futex_waitv */ \
		[455] = GPC_WAIT_FUTEX, /* futex_wait */ \
	}
#endif

enum {
	GPC_CFG_MIN_WAIT_NS = 0,
	GPC_CFG_FAULT_PROGRAMS = 1,
	GPC_CFG_WAKE_BYTES = 2,
};

enum {
	GPC_CTL_EPOCH = 0,
	GPC_CTL_SUM_WINDOW = 1,
	GPC_CTL_ITER_MODE = 2,
	GPC_CTL_ITER_TGID = 3,
};

enum {
	GPC_CPU_IN_HARD_TIMER = 0,
	GPC_CPU_DROP_WAIT = 1,
	GPC_CPU_DROP_FAULT = 2,
	GPC_CPU_DROP_TASK = 3,
	GPC_CPU_DROP_SPIN = 4,
	GPC_CPU_IN_SOFT_TIMER = 5,
	GPC_CPU_FIRST_DROP_NS = 6,
	GPC_CPU_LAST_DROP_NS = 7,
	GPC_CPU_FAIL_STORAGE = 8,
	GPC_CPU_FAIL_READ = 9,
	GPC_CPU_SUMS_FULL = 10,
	GPC_CPU_IN_SOFTIRQ = 11,
	GPC_CPU_IN_IRQ = 12,
	GPC_CPU_RECOVERED = 13,
};

enum {
	GPC_ITER_REPORT = 0,
	GPC_ITER_ATTACH = 1,
	GPC_ITER_FORGET = 2,
};

enum {
	GPC_MAP_CONFIG = 0,
	GPC_MAP_KINDS = 1,
	GPC_MAP_CONTROL = 2,
	GPC_MAP_TARGETS = 3,
	GPC_MAP_CPUS = 4,
	GPC_MAP_STINTS = 5,
	GPC_MAP_WALK = 6,
	GPC_MAP_RINGS = 7,
	GPC_MAP_STATES = 8,
	GPC_MAP_SUMS_EVEN = 9,
	GPC_MAP_SUMS_ODD = 10,
};

#endif
