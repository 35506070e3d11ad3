/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the programs share: targets, rings, counters, and what is known about each thread. */
#ifndef GPC_STATE_H
#define GPC_STATE_H

/* Fixed at load; positions in layout.gen.h. */
const volatile __u64 gpc_config[GPC_CONFIG_WORDS] SEC(".rodata.config");
/* Written by the tracer while the programs run. */
__u64 gpc_control[GPC_CONTROL_WORDS] SEC(".bss.control");
/* One bit a process id: plain memory, because every context switch looks here twice. */
__u64 gpc_targets[GPC_TARGET_WORDS] SEC(".bss.targets");
__u64 gpc_cpus[GPC_MAX_CPUS][GPC_CPU_WORDS] SEC(".bss.cpus");

struct gpc_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

/* One ring a CPU: a ring shared by all costs three times as much when CPUs contend for it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct gpc_ring);
} gpc_rings SEC(".maps");

struct gpc_state {
	__u64 off_ns;	/* left the CPU; 0: it is on one */
	__u64 wake_ns;	/* made runnable since */
	__u64 early_ns; /* woken before it was asleep */
	__u64 arg;
	__u32 waker_tid, waker_tgid; /* preempted: who took the CPU */
	__u32 early_tid, early_tgid;
	__u32 op;
	__u32 epoch; /* announced in this epoch */
	__s16 nr, waker_nr, early_nr, fault_nr;
	__u8 kind, flags, early_flags, fault_flags;
	/* The page fault it is in; fault_ns 0: none. */
	__u32 fault_dev;
	__u64 fault_ns, fault_addr, fault_inode, fault_block_ns, fault_wake_ns;
	__u32 fault_tid, fault_tgid;
	/* A run of sched_yield calls; spin_turns 0: none. */
	__u64 spin_start_ns, spin_last_ns;
	__u32 spin_turns;
	__u32 cpu; /* it left */
	/* Whose account of throttled time is compared at the end; NULL: nobody's. */
	struct cfs_rq *queue;
	__u64 throttled_ns;
	__u64 due_ns; /* when the sleep it is in ends by itself; 0: unknown */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gpc_state);
} gpc_states SEC(".maps");

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

static __always_inline void rec_submit(struct gpc_rec *r)
{
	/* The tracer drains on a clock: waking it for every record would cost more than it. */
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
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
