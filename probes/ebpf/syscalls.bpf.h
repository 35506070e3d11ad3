/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a thread that leaves the CPU is waiting in, from its own syscall and arguments. */
#ifndef GPC_SYSCALLS_H
#define GPC_SYSCALLS_H

#if defined(__TARGET_ARCH_x86)
/* arch/x86/entry/syscalls/syscall_64.tbl */
#define NR_SCHED_YIELD 24
#define NR_FUTEX 202
#define NR_FUTEX_WAITV 449
#define NR_NANOSLEEP 35
#define NR_FUTEX_WAIT 455
#elif defined(__TARGET_ARCH_arm64)
/* include/uapi/asm-generic/unistd.h */
#define NR_SCHED_YIELD 124
#define NR_FUTEX 98
#define NR_FUTEX_WAITV 449
#define NR_NANOSLEEP 101
#define NR_FUTEX_WAIT 455
#endif

/* include/uapi/linux/futex.h */
#define FUTEX_WAIT 0
struct futex_waitv {
	__u64 val;
	__u64 uaddr;
	__u32 flags;
	__u32 reserved;
};

static __always_inline __u32 mode_kind(__u16 mode)
{
	switch (mode & S_IFMT) {
	case S_IFIFO:
		return GPC_FD_PIPE;
	case S_IFSOCK:
		return GPC_FD_SOCKET;
	case S_IFREG:
	case S_IFBLK:
	case S_IFDIR:
		return GPC_FD_FILE;
	}
	return GPC_FD_OTHER; /* eventfd and the like, character devices */
}

/* What a file descriptor of the task refers to. */
static __always_inline __u32 fd_kind(struct task_struct *task, __u32 fd)
{
	struct files_struct *files = task->files;
	struct file **slot, *file = NULL;
	struct inode *inode = NULL;
	struct fdtable *fdt;
	__u16 mode = 0;

	if (!files)
		return GPC_FD_NONE;
	fdt = files->fdt;
	if (fd >= fdt->max_fds)
		return GPC_FD_NONE;
	slot = fdt->fd + fd;
	if (bpf_probe_read_kernel(&file, sizeof(file), slot) || !file ||
	    bpf_core_read(&inode, sizeof(inode), &file->f_inode) || !inode ||
	    bpf_core_read(&mode, sizeof(mode), &inode->i_mode)) {
		count(GPC_CPU_FAIL_READ);
		return GPC_FD_NONE;
	}
	return mode_kind(mode);
}

/* Address and operation of a futex wait; of several futexes, the first. */
static __always_inline void describe_futex(struct gpc_state *s, __s16 nr, __u64 arg1)
{
	struct futex_waitv first;

	s->op = nr == NR_FUTEX ? (__u32)arg1 : FUTEX_WAIT;
	if (nr != NR_FUTEX_WAITV)
		return;
	/* The thread is still current: its memory is the one mapped. */
	if (bpf_probe_read_user(&first, sizeof(first), (void *)s->arg))
		count(GPC_CPU_FAIL_READ);
	else
		s->arg = first.uaddr;
}

/* include/uapi/linux/time.h */
#define CLOCK_MONOTONIC 1
#define TIMER_ABSTIME 1
struct gpc_timespec {
	__s64 tv_sec, tv_nsec;
};

/* When the sleep that begins now ends by itself, where that is told on our clock. */
static __always_inline void describe_sleep(struct gpc_state *s, __s16 nr, struct pt_regs *regs)
{
	bool plain = nr == NR_NANOSLEEP;
	void *wanted = (void *)(plain ? GPC_REGS_ARG0(regs) : GPC_REGS_ARG2(regs));
	bool at = !plain && GPC_REGS_ARG1(regs) & TIMER_ABSTIME;
	struct gpc_timespec time;

	if (at && GPC_REGS_ARG0(regs) != CLOCK_MONOTONIC)
		return;
	if (bpf_probe_read_user(&time, sizeof(time), wanted)) {
		count(GPC_CPU_FAIL_READ);
		return;
	}
	s->due_ns = (at ? 0 : bpf_ktime_get_ns()) + time.tv_sec * 1000000000ull + time.tv_nsec;
}

/* A thread without a syscall number blocks in a fault, or was stopped on its way to user code. */
static __always_inline __u8 kind_without_syscall(struct task_struct *task, struct gpc_state *s)
{
	if (task->flags & (PF_IO_WORKER | PF_USER_WORKER))
		return GPC_WAIT_OTHER;
	if (task->__state & TASK_STOPPED_OR_TRACED)
		return GPC_WAIT_OTHER;
	if (gpc_config[GPC_CFG_FAULT_PROGRAMS] && !s->fault_ns)
		return GPC_WAIT_OTHER;
	s->arg = s->fault_ns ? s->fault_addr : 0;
	return GPC_WAIT_FAULT;
}

/* Fill in kind, argument and operation of a wait; current is the thread, or it is at rest. */
static __always_inline void describe(struct task_struct *task, struct gpc_state *s, bool is_current)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__s16 nr = s->nr;

	s->arg = 0;
	s->op = 0;
	s->due_ns = 0;
	/* A fault that never ended (a signal came instead) is over when another syscall waits. */
	if (s->fault_ns && s->fault_nr != nr)
		s->fault_ns = 0;
	if (task->flags & PF_EXITING) {
		s->kind = GPC_WAIT_EXITING;
		return;
	}
	if (nr < 0) {
		s->kind = kind_without_syscall(task, s);
		return;
	}
	if (s->fault_ns) {
		s->kind = GPC_WAIT_FAULT;
		s->arg = s->fault_addr;
		return;
	}
	s->kind = nr < GPC_KINDS ? gpc_kind_of[nr & (GPC_KINDS - 1)] : GPC_WAIT_OTHER;
	s->arg = GPC_REGS_ARG0(regs);
	if (s->kind == GPC_WAIT_READ || s->kind == GPC_WAIT_WRITE)
		s->op = fd_kind(task, s->arg);
	else if (s->kind == GPC_WAIT_SLEEP && is_current)
		describe_sleep(s, nr, regs);
	else if (s->kind == GPC_WAIT_FUTEX && is_current)
		describe_futex(s, nr, GPC_REGS_ARG1(regs));
	else if (s->kind == GPC_WAIT_FUTEX && nr == NR_FUTEX)
		s->op = GPC_REGS_ARG1(regs);
}

#endif
