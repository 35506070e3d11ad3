/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Waits: from the switch away from a thread to the switch back, with who woke it in between. */
#ifndef GPC_WAITS_H
#define GPC_WAITS_H

/* Who had the CPU is named (not only numbered) when a woken thread queued longer than this. */
#define GPC_RAN_NAMED_NS 20000

SEC("tp_btf/sched_waking")
int BPF_PROG(wait_waking, struct task_struct *task)
{
	struct task_struct *waker;
	struct gpc_state *s;
	__u64 now;
	__s16 nr;

	if (!is_target(task->tgid))
		return 0;
	s = state_of(task);
	if (!s)
		return 0;
	waker = bpf_get_current_task_btf();
	announce_other(waker);
	nr = syscall_of(waker);
	now = bpf_ktime_get_ns();
	if (s->off_ns && !s->wake_ns) {
		s->waker_tid = waker->pid;
		s->waker_tgid = waker->tgid;
		s->waker_nr = nr;
		s->flags |= wake_context(waker, nr);
		throttle_note(s, task);
		s->wake_ns = now;
		return 0;
	}
	/*
	 * Not asleep yet: running, or preempted on its way to sleep. Either it never sleeps (this
	 * is then stale, and its next sleep has a wake of its own) or it falls asleep before the
	 * waker gets further than this tracepoint, and no other wake will be seen.
	 */
	s->early_tid = waker->pid;
	s->early_tgid = waker->tgid;
	s->early_nr = nr;
	s->early_flags = wake_context(waker, nr) | GPC_WF_WAKE_EARLY;
	s->early_ns = now;
	return 0;
}

static __always_inline bool is_sleep(__u8 kind)
{
	return kind != GPC_WAIT_PREEMPTED && kind != GPC_WAIT_YIELD;
}

/* A sleep without a wake was ended by the one that came before it. */
static __always_inline void wait_use_early(struct gpc_state *s)
{
	s->wake_ns = s->off_ns;
	s->waker_tid = s->early_tid;
	s->waker_tgid = s->early_tgid;
	s->waker_nr = s->early_nr;
	s->flags |= s->early_flags;
	s->early_ns = 0;
}

/* A sleep that nobody was seen to end, and that was over: its timer did. */
static __always_inline void wait_use_due(struct gpc_state *s, __u64 end)
{
	if (s->kind != GPC_WAIT_SLEEP || s->wake_ns || !s->due_ns || s->due_ns > end)
		return;
	s->wake_ns = s->due_ns > s->off_ns ? s->due_ns : s->off_ns;
	s->flags |= GPC_WF_WAKE_TIMER;
}

/* Of a wait that ends, how long its thread could have run and was throttled. */
static __always_inline __u64 wait_throttled(struct task_struct *task, struct gpc_state *s,
					    __u64 end)
{
	if (!is_sleep(s->kind))
		return throttle_since(s, end - s->off_ns);
	/* The account is of the queue it was in before; it may have been woken into another. */
	if (!s->wake_ns || end < s->wake_ns || !GPC_HAS(sched_entity, cfs_rq) ||
	    task->se.cfs_rq != s->queue)
		return 0;
	return throttle_since(s, end - s->wake_ns);
}

static __always_inline void wait_emit(struct task_struct *task, struct gpc_state *s, __u64 ran,
				      __u64 end)
{
	struct gpc_rec *r = rec_reserve(GPC_REC_WAIT, task);

	if (!r)
		return;
	r->start_ns = s->off_ns;
	r->wake_ns = s->wake_ns;
	r->end_ns = end;
	r->arg = s->arg;
	r->arg2 = ran;
	r->block_ns = wait_throttled(task, s, end);
	r->op = s->op;
	r->waker_tid = s->waker_tid;
	r->waker_tgid = s->waker_tgid;
	r->syscall = s->nr;
	r->waker_syscall = s->waker_nr;
	r->wait_kind = s->kind;
	r->flags = s->flags;
	rec_submit(r);
}

static __always_inline void wait_finish(struct task_struct *task, struct gpc_state *s, __u64 ran,
					__u64 end)
{
	__u64 length = end - s->off_ns;

	if (s->fault_ns) {
		s->fault_block_ns += length;
		s->fault_wake_ns = s->wake_ns;
		s->fault_tid = s->waker_tid;
		s->fault_tgid = s->waker_tgid;
	}
	if (length >= gpc_config[GPC_CFG_MIN_WAIT_NS] || s->flags & GPC_WF_START_UNKNOWN ||
	    !sum_wait(task, s->kind, s->off_ns, end, s->wake_ns ? end - s->wake_ns : 0))
		wait_emit(task, s, ran, end);
	s->wake_ns = 0;
	s->off_ns = 0;
}

/*
 * A thread that runs although its return was never seen: some virtual machines' kernels pass over
 * tracepoints while a CPU idles. The scheduler's own account says when it came back.
 */
static __always_inline void wait_recover(struct task_struct *task, struct gpc_state *s, __u64 now)
{
	__u64 end = now - ran_ns(task);

	count(GPC_CPU_RECOVERED);
	if (end > now || end < s->off_ns)
		end = s->off_ns;
	if (is_sleep(s->kind) && s->wake_ns > end) {
		/* Seen after the return: it belongs to the sleep that begins now. */
		s->early_tid = s->waker_tid;
		s->early_tgid = s->waker_tgid;
		s->early_nr = s->waker_nr;
		s->early_flags = (s->flags & ~GPC_WF_START_UNKNOWN) | GPC_WF_WAKE_EARLY;
		s->early_ns = s->wake_ns;
		s->waker_tid = s->waker_tgid = 0;
		s->waker_nr = -1;
		s->flags &= GPC_WF_START_UNKNOWN;
		s->wake_ns = 0;
	} else if (is_sleep(s->kind) && !s->wake_ns && s->early_ns && s->early_ns <= end) {
		wait_use_early(s);
	}
	wait_use_due(s, end);
	wait_finish(task, s, 0, end);
}

static __always_inline void wait_begin(struct task_struct *prev, struct task_struct *next,
				       bool preempt, __u64 now)
{
	struct gpc_state *s = state_of(prev);

	if (!s)
		return;
	announce(prev, s);
	if (s->off_ns)
		wait_recover(prev, s, now);
	s->nr = syscall_of(prev);
	if (s->nr < -1)
		s->nr = -1;
	s->flags = 0;
	s->cpu = bpf_get_smp_processor_id();
	if (preempt || !prev->__state) {
		s->kind = s->nr == NR_SCHED_YIELD ? GPC_WAIT_YIELD : GPC_WAIT_PREEMPTED;
		s->arg = s->op = 0;
		s->waker_tid = next->pid;
		s->waker_tgid = next->tgid;
		s->waker_nr = syscall_of(next);
		s->wake_ns = now;
		throttle_note(s, prev);
	} else {
		s->waker_tid = s->waker_tgid = 0;
		s->waker_nr = -1;
		s->wake_ns = 0;
		s->queue = NULL;
		describe(prev, s, true);
	}
	barrier(); /* a waker that sees off_ns must find the rest in place */
	s->off_ns = now;
}

static __always_inline void wait_end(struct task_struct *next, struct task_struct *prev, __u64 now)
{
	struct gpc_state *s = state_if_any(next);

	if (!s || !s->off_ns)
		return;
	if (is_sleep(s->kind)) {
		if (!s->wake_ns && s->early_ns)
			wait_use_early(s);
		wait_use_due(s, now);
		s->early_ns = 0;
	} else {
		blame(s, prev, now - s->off_ns);
		announce_other(prev);
	}
	if (s->wake_ns && now - s->wake_ns > GPC_RAN_NAMED_NS)
		announce_other(prev);
	wait_finish(next, s, (__u64)prev->tgid << 32 | (__u32)prev->pid, now);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(wait_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	bool leaving = is_target(prev->tgid), coming = is_target(next->tgid);
	__u64 now;

	stint_note(prev);
	if (!leaving && !coming)
		return 0;
	now = bpf_ktime_get_ns();
	if (leaving)
		wait_begin(prev, next, preempt, now);
	if (coming)
		wait_end(next, prev, now);
	return 0;
}

#endif
