/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Page faults: begun by the exception's tracepoint, ended by the perf event that counts them. */
#ifndef GPC_FAULTS_H
#define GPC_FAULTS_H

static __always_inline int fault_begin(__u64 addr, __u64 error_code, __u8 flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct gpc_state *s;

	if (!is_target(task->tgid))
		return 0;
	/* Reads that may not sleep fail at once, uncounted; kernel addresses are no page's. */
	if (addr >= GPC_USER_END || (flags && task->pagefault_disabled))
		return 0;
	s = state_of(task);
	if (!s)
		return 0;
	s->fault_addr = addr;
	s->fault_inode = 0;
	s->fault_dev = 0;
	s->fault_block_ns = 0;
	s->fault_wake_ns = 0;
	s->fault_tid = s->fault_tgid = 0;
	s->fault_flags = flags | (GPC_FAULT_WRITES(error_code) ? GPC_FF_WRITE : 0);
	s->fault_nr = flags ? syscall_of(task) : -1;
	s->fault_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(fault_user, unsigned long addr, struct pt_regs *regs, unsigned long error_code)
{
	return fault_begin(addr, error_code, 0);
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(fault_kernel, unsigned long addr, struct pt_regs *regs, unsigned long error_code)
{
	return fault_begin(addr, error_code, GPC_FF_KERNEL);
}

SEC("tp_btf/mm_filemap_fault")
int BPF_PROG(fault_file, struct address_space *mapping)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct gpc_state *s;

	if (!is_target(task->tgid))
		return 0;
	s = state_if_any(task);
	if (!s || !s->fault_ns)
		return 0;
	s->fault_inode = mapping->host->i_ino;
	s->fault_dev = mapping->host->i_sb->s_dev;
	s->fault_flags |= GPC_FF_FILE;
	return 0;
}

static __always_inline void fault_fill(struct gpc_rec *r, struct gpc_state *s, __u64 now)
{
	r->start_ns = s->fault_ns;
	r->end_ns = now;
	r->wake_ns = s->fault_wake_ns;
	r->arg = s->fault_addr;
	r->arg2 = s->fault_inode;
	r->block_ns = s->fault_block_ns;
	r->op = s->fault_dev;
	r->waker_tid = s->fault_tid;
	r->waker_tgid = s->fault_tgid;
	r->syscall = s->fault_nr;
	r->flags = s->fault_flags;
}

static __always_inline int fault_end(__u8 flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct gpc_state *s;
	struct gpc_rec *r;

	if (!is_target(task->tgid))
		return 0;
	s = state_if_any(task);
	if (!s || !s->fault_ns)
		return 0;
	r = rec_reserve(GPC_REC_FAULT, task);
	if (r) {
		s->fault_flags |= flags;
		fault_fill(r, s, bpf_ktime_get_ns());
		rec_submit(r);
	}
	s->fault_ns = 0;
	return 0;
}

SEC("perf_event")
int fault_minor(struct bpf_perf_event_data *ctx)
{
	return fault_end(0);
}

SEC("perf_event")
int fault_major(struct bpf_perf_event_data *ctx)
{
	return fault_end(GPC_FF_MAJOR);
}

#endif
