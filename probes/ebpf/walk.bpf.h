/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Walks over all tasks, run by reading a file: what is already, or still, going on. */
#ifndef GPC_WALK_H
#define GPC_WALK_H

static __always_inline struct gpc_rec *walk_rec(struct task_struct *task, __u8 rec_kind)
{
	struct gpc_rec *r = &gpc_walk_rec;

	__builtin_memset(r, 0, sizeof(*r));
	r->rec_kind = rec_kind;
	r->tid = task->pid;
	r->tgid = task->tgid;
	return r;
}

static __always_inline void walk_write(struct seq_file *seq, struct gpc_rec *r)
{
	/* A full buffer makes the kernel come again for the same task: nothing to count. */
	bpf_seq_write(seq, r, sizeof(*r));
}

static __always_inline void walk_report(struct seq_file *seq, struct task_struct *task,
					struct gpc_state *s)
{
	struct gpc_rec *r;

	/* On a CPU its return was missed: the wait is over and told at its next switch. */
	if (s->off_ns && !task->on_cpu) {
		r = walk_rec(task, GPC_REC_WAIT);
		r->start_ns = s->off_ns;
		r->wake_ns = s->wake_ns;
		r->arg = s->arg;
		r->op = s->op;
		r->waker_tid = s->waker_tid;
		r->waker_tgid = s->waker_tgid;
		r->syscall = s->nr;
		r->waker_syscall = s->waker_nr;
		r->wait_kind = s->kind;
		r->flags = s->flags | GPC_WF_OPEN;
		walk_write(seq, r);
	}
	if (s->off_ns && s->fault_ns && !task->on_cpu) {
		r = walk_rec(task, GPC_REC_FAULT);
		fault_fill(r, s, 0);
		r->flags |= GPC_FF_OPEN;
		walk_write(seq, r);
	}
	if (s->spin_turns) {
		r = walk_rec(task, GPC_REC_SPIN);
		spin_fill(r, s);
		walk_write(seq, r);
	}
}

/* A thread that tracing finds: say who it is, and open the wait it is in. */
static __always_inline void walk_attach(struct seq_file *seq, struct task_struct *task,
					struct gpc_state *s)
{
	struct gpc_rec *r = walk_rec(task, GPC_REC_TASK);
	__s16 nr = syscall_of(task);

	/* Before anything else is known of the thread: its next switch must be seen. */
	set_target(task->tgid);
	s->epoch = gpc_control[GPC_CTL_EPOCH];
	task_fill(r, task, GPC_TASK_SEEN, task->comm, task->real_parent->tgid, 0);
	walk_write(seq, r);
	if (s->off_ns || task->on_cpu)
		return;
	s->nr = nr < -1 ? -1 : nr;
	s->flags = GPC_WF_START_UNKNOWN;
	s->waker_tid = s->waker_tgid = 0;
	s->waker_nr = -1;
	s->fault_ns = 0;
	s->queue = NULL;
	describe(task, s, false);
	s->wake_ns = 0;
	if (!task->__state) {
		s->kind = GPC_WAIT_PREEMPTED;
		s->wake_ns = r->start_ns;
	}
	barrier();
	s->off_ns = r->start_ns;
}

static __always_inline void walk_forget(struct task_struct *task, struct gpc_state *s)
{
	clear_target(task->tgid);
	s->off_ns = s->wake_ns = s->early_ns = s->fault_ns = 0;
	s->spin_turns = 0;
}

SEC("iter/task")
int walk_tasks(struct bpf_iter__task *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	__u64 mode = gpc_control[GPC_CTL_ITER_MODE];
	struct gpc_state *s;
	__u32 wanted;

	if (!task || task->exit_state)
		return 0;
	if (mode == GPC_ITER_REPORT) {
		s = is_target(task->tgid) ? state_if_any(task) : NULL;
		if (s)
			walk_report(seq, task, s);
		return 0;
	}
	/* The tracer names processes as its own pid namespace, which is current's, does. */
	wanted = gpc_control[GPC_CTL_ITER_TGID];
	if (ns_id_at(task->group_leader, ns_level(bpf_get_current_task_btf())) != wanted)
		return 0;
	s = state_of(task);
	if (!s)
		return 0;
	if (mode == GPC_ITER_ATTACH)
		walk_attach(seq, task, s);
	else if (mode == GPC_ITER_FORGET)
		walk_forget(task, s);
	return 0;
}

#endif
