/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * In which context a wake is done: the thread that is current when a timer or the network wakes
 * another was only interrupted. A mark per CPU and kind of context; hard interrupts do not nest,
 * nor do soft ones, so a mark is set and cleared, never counted: a missed run heals itself.
 */
#ifndef GPC_CONTEXT_H
#define GPC_CONTEXT_H

static __always_inline int context_mark(__u32 slot, __u64 on)
{
	*cpu_slot(slot) = on;
	return 0;
}

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(context_hrtimer_entry, struct hrtimer *timer)
{
	return context_mark(timer->is_soft ? GPC_CPU_IN_SOFT_TIMER : GPC_CPU_IN_HARD_TIMER, 1);
}

SEC("tp_btf/hrtimer_expire_exit")
int BPF_PROG(context_hrtimer_exit, struct hrtimer *timer)
{
	return context_mark(timer->is_soft ? GPC_CPU_IN_SOFT_TIMER : GPC_CPU_IN_HARD_TIMER, 0);
}

/* The timer wheel, which ends sleeps with coarse timeouts; it runs in soft interrupts. */
SEC("tp_btf/timer_expire_entry")
int BPF_PROG(context_timer_entry)
{
	return context_mark(GPC_CPU_IN_SOFT_TIMER, 1);
}

SEC("tp_btf/timer_expire_exit")
int BPF_PROG(context_timer_exit)
{
	return context_mark(GPC_CPU_IN_SOFT_TIMER, 0);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(context_softirq_entry)
{
	return context_mark(GPC_CPU_IN_SOFTIRQ, 1);
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(context_softirq_exit)
{
	return context_mark(GPC_CPU_IN_SOFTIRQ, 0);
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(context_irq_entry)
{
	return context_mark(GPC_CPU_IN_IRQ, 1);
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(context_irq_exit)
{
	return context_mark(GPC_CPU_IN_IRQ, 0);
}

/* Code in user mode wakes nobody: it was interrupted, or it is in a fault or dying. */
static __always_inline bool interrupted_user(struct task_struct *waker, __s16 nr)
{
	struct gpc_state *s;

	if (nr != -1 || waker->flags & PF_EXITING)
		return false;
	s = state_if_any(waker);
	return !s || !s->fault_ns;
}

/* The context of a wake that current does, as WaitFlag bits. */
static __always_inline __u8 wake_context(struct task_struct *waker, __s16 nr)
{
	__u8 flags = 0;

	if (*cpu_slot(GPC_CPU_IN_HARD_TIMER))
		flags = GPC_WF_WAKE_TIMER;
	else if (*cpu_slot(GPC_CPU_IN_IRQ))
		flags = GPC_WF_WAKE_IRQ;
	else if (*cpu_slot(GPC_CPU_IN_SOFTIRQ))
		flags = GPC_WF_WAKE_SOFTIRQ |
			(*cpu_slot(GPC_CPU_IN_SOFT_TIMER) ? GPC_WF_WAKE_TIMER : 0);
	else if (waker->pid && waker->flags & PF_KTHREAD)
		flags = GPC_WF_WAKE_KTHREAD;
	else if (interrupted_user(waker, nr))
		flags = GPC_WF_WAKE_IRQ;
	return waker->pid ? flags : flags | GPC_WF_WAKE_IDLE;
}

#endif
