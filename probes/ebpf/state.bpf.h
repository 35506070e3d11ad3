/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What every program does with what they share: targets, counters, records. */
#ifndef GPC_STATE_H
#define GPC_STATE_H

static __always_inline bool is_target(__u32 tgid)
{
	return gpc_targets[(tgid >> 6) & (GPC_TARGET_WORDS - 1)] >> (tgid & 63) & 1;
}

static __always_inline void set_target(__u32 tgid)
{
	__sync_fetch_and_or(&gpc_targets[(tgid >> 6) & (GPC_TARGET_WORDS - 1)],
			    1ull << (tgid & 63));
}

static __always_inline void clear_target(__u32 tgid)
{
	__sync_fetch_and_and(&gpc_targets[(tgid >> 6) & (GPC_TARGET_WORDS - 1)],
			     ~(1ull << (tgid & 63)));
}

static __always_inline __u64 *cpu_slot(__u32 slot)
{
	__u32 cpu = bpf_get_smp_processor_id() & (GPC_MAX_CPUS - 1);

	return &gpc_cpus[cpu][slot & (GPC_CPU_WORDS - 1)];
}

static __always_inline void count(__u32 slot)
{
	__sync_fetch_and_add(cpu_slot(slot), 1);
}

static __always_inline void count_drop(__u8 rec_kind)
{
	__u64 now = bpf_ktime_get_ns(), *first = cpu_slot(GPC_CPU_FIRST_DROP_NS);

	count(rec_kind);
	if (!*first)
		*first = now;
	*cpu_slot(GPC_CPU_LAST_DROP_NS) = now;
}

/* The state of a thread, made when it is missing. A failure is counted: it hides a wait. */
static __always_inline struct gpc_state *state_of(struct task_struct *task)
{
	struct gpc_state *s;

	s = bpf_task_storage_get(&gpc_states, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!s)
		count(GPC_CPU_FAIL_STORAGE);
	return s;
}

static __always_inline struct gpc_state *state_if_any(struct task_struct *task)
{
	return bpf_task_storage_get(&gpc_states, task, 0, 0);
}

/* A zeroed record in this CPU's ring, or NULL and a drop counted. */
static __always_inline struct gpc_rec *rec_reserve(__u8 rec_kind, struct task_struct *task)
{
	__u32 cpu = bpf_get_smp_processor_id();
	void *ring = bpf_map_lookup_elem(&gpc_rings, &cpu);
	struct gpc_rec *r = NULL;

	if (ring)
		r = bpf_ringbuf_reserve(ring, sizeof(*r), 0);
	if (!r) {
		count_drop(rec_kind);
		return NULL;
	}
	__builtin_memset(r, 0, sizeof(*r));
	r->rec_kind = rec_kind;
	r->cpu = cpu;
	r->tid = task->pid;
	r->tgid = task->tgid;
	return r;
}

/* More records than can be under way on one CPU at a time: task, softirq, hard irq, NMI. */
#define GPC_WAKE_SPAN (16 * (sizeof(struct gpc_rec) + BPF_RINGBUF_HDR_SZ))

/*
 * The tracer drains on a slow clock, as waking it for every record would cost more than they
 * do. It is woken once by a ring that fills between two drains.
 */
static __always_inline void rec_submit(struct gpc_rec *r)
{
	__u64 filled = 0, flags = BPF_RB_NO_WAKEUP;
	__u32 cpu = r->cpu;
	void *ring = bpf_map_lookup_elem(&gpc_rings, &cpu);

	if (ring)
		filled = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);
	if (filled - gpc_config[GPC_CFG_WAKE_BYTES] < GPC_WAKE_SPAN)
		flags = BPF_RB_FORCE_WAKEUP;
	bpf_ringbuf_submit(r, flags);
}

/* The same, and the tracer is woken: for what is rare and must be looked at while it lives. */
static __always_inline void rec_submit_now(struct gpc_rec *r)
{
	bpf_ringbuf_submit(r, BPF_RB_FORCE_WAKEUP);
}

/* The syscall a thread is in; -1: none (user code, exception), -2: it never runs user code. */
static __always_inline __s16 syscall_of(struct task_struct *task)
{
	struct pt_regs *regs;
	long nr;

	if (task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER))
		return -2;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	nr = GPC_REGS_NR(regs);
	return nr < 0 || nr > 0x7fff ? -1 : nr;
}

#endif
