/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Made from probes/wire/schema.py by probes/wire/cgen.py: edit that and run it. */
#ifndef GPC_EVENTS_GEN_H
#define GPC_EVENTS_GEN_H

enum {
	GPC_REC_WAIT = 1,
	GPC_REC_FAULT = 2,
	GPC_REC_TASK = 3,
	GPC_REC_SPIN = 4,
};

enum {
	GPC_WAIT_OTHER = 0,
	GPC_WAIT_FUTEX = 1,
	GPC_WAIT_EPOLL = 2,
	GPC_WAIT_POLL = 3,
	GPC_WAIT_SELECT = 4,
	GPC_WAIT_READ = 5,
	GPC_WAIT_WRITE = 6,
	GPC_WAIT_SLEEP = 7,
	GPC_WAIT_IO_URING = 8,
	GPC_WAIT_IOCTL = 9,
	GPC_WAIT_FAULT = 10,
	GPC_WAIT_PREEMPTED = 11,
	GPC_WAIT_YIELD = 12,
	GPC_WAIT_EXITING = 13,
};

enum {
	GPC_FD_NONE = 0,
	GPC_FD_PIPE = 1,
	GPC_FD_SOCKET = 2,
	GPC_FD_FILE = 3,
	GPC_FD_OTHER = 4,
};

enum {
	GPC_WF_OPEN = 1,
	GPC_WF_START_UNKNOWN = 2,
	GPC_WF_WAKE_TIMER = 4,
	GPC_WF_WAKE_SOFTIRQ = 8,
	GPC_WF_WAKE_IRQ = 16,
	GPC_WF_WAKE_IDLE = 32,
	GPC_WF_WAKE_KTHREAD = 64,
	GPC_WF_WAKE_EARLY = 128,
};

enum {
	GPC_FF_MAJOR = 1,
	GPC_FF_WRITE = 2,
	GPC_FF_KERNEL = 4,
	GPC_FF_FILE = 8,
	GPC_FF_OPEN = 16,
};

enum {
	GPC_TASK_SEEN = 0,
	GPC_TASK_FORK = 1,
	GPC_TASK_EXEC = 2,
	GPC_TASK_EXIT = 3,
	GPC_TASK_RENAMED = 4,
};

struct gpc_rec {
	__s64 start_ns; /* wait or fault start; task: when; spin: first turn */
	__s64 wake_ns; /* wake, 0 none */
	__s64 end_ns; /* end */
	__u64 arg; /* wait: first syscall argument; fault: address; task: comm bytes 0-7 */
	__u64 arg2; /* wait: who ran before, tgid << 32 | tid; fault: inode; task: comm bytes 8-15; spin: turns */
	__u64 block_ns; /* fault: time off CPU inside it; wait: throttled */
	__u32 tid; /* thread */
	__u32 tgid; /* process */
	__u32 waker_tid; /* waker; preempted: who ran instead; task: parent tgid */
	__u32 waker_tgid; /* its process; task: thread that created it */
	__u32 op; /* futex op or FdKind; fault: device; task: TaskEvent */
	__u16 cpu; /* CPU */
	__s16 syscall; /* own syscall */
	__s16 waker_syscall; /* waker's syscall */
	__u8 rec_kind; /* KernelRecord */
	__u8 wait_kind; /* WaitKind */
	__u8 flags; /* WaitFlag or FaultFlag */
	__u8 pad0; /* zero */
	__u16 pad1; /* zero */
};

_Static_assert(sizeof(struct gpc_rec) == 80, "record of 80 bytes");

#endif
