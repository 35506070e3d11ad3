/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Runs of sched_yield: a thread that polls is on the CPU, so no switch tells that it waits. */
#ifndef GPC_SPINS_H
#define GPC_SPINS_H

/* Turns further apart than this belong to different runs. */
#define SPIN_GAP_NS 100000
/* Longer runs are reported in parts, so that one that goes on for ever is seen. */
#define SPIN_PART_NS 50000000

static __always_inline void spin_fill(struct gpc_rec *r, struct gpc_state *s)
{
	r->start_ns = s->spin_start_ns;
	r->end_ns = s->spin_last_ns;
	r->arg2 = s->spin_turns;
}

static __always_inline void spin_flush(struct task_struct *task, struct gpc_state *s)
{
	struct gpc_rec *r = rec_reserve(GPC_REC_SPIN, task);

	if (r) {
		spin_fill(r, s);
		rec_submit(r);
	}
	s->spin_turns = 0;
}

/* Costs every syscall of the machine a little: attached only where nobody else sees the spin. */
SEC("tp_btf/sys_enter")
int BPF_PROG(spin_syscall, struct pt_regs *regs, long nr)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct gpc_state *s;
	__u64 now;

	if (!is_target(task->tgid))
		return 0;
	s = state_of(task);
	if (!s)
		return 0;
	if (nr != NR_SCHED_YIELD) {
		if (s->spin_turns)
			spin_flush(task, s);
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (s->spin_turns &&
	    (now - s->spin_last_ns > SPIN_GAP_NS || now - s->spin_start_ns > SPIN_PART_NS))
		spin_flush(task, s);
	if (!s->spin_turns)
		s->spin_start_ns = now;
	s->spin_last_ns = now;
	s->spin_turns++;
	return 0;
}

#endif
