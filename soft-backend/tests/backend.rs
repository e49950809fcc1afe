//! The backend through `vmm-core`'s traits: running, kicking, saving, loading, dirty pages, several
//! vCPUs.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress};
use vmm_core::Gpa;
use vmm_core::cpu_state::VcpuState;
use vmm_core::exit::{ExitHandler, PsciCall};
use vmm_core::hypervisor::{ArchSpec, CreatedVm, Hypervisor, VcpuStop, VmSpec, X86Spec};
use vmm_core::irq::MsiMessage;
use vmm_core::ram::{ChunkIndex, FillSource, GuestRam, RamBacking};
use vmm_core::tracker::DirtyTracker;
use vmm_core::x86::{self, ClockState, CpuProfile, MpState, Segment, X86VcpuState};

/// Port writes go to a channel.
struct Ports(Sender<(u16, u32)>);

impl ExitHandler for Ports {
    fn pio_read(&mut self, _: u16, data: &mut [u8]) {
        data.fill(0);
    }
    fn pio_write(&mut self, port: u16, data: &[u8]) {
        let mut v = [0; 4];
        v[..data.len()].copy_from_slice(data);
        let _ = self.0.send((port, u32::from_le_bytes(v)));
    }
    fn mmio_read(&mut self, _: Gpa, data: &mut [u8]) {
        data.fill(0);
    }
    fn mmio_write(&mut self, _: Gpa, _: &[u8]) {}
    fn ioapic_eoi(&mut self, _: u8) {}
    fn psci(&mut self, _: PsciCall) -> u64 {
        0
    }
    fn virtual_timer_fired(&mut self) {}
    fn undecoded_abort(&mut self, _: Gpa, _: u64) -> bool {
        false
    }
}

fn ram() -> GuestRam {
    GuestRam::new(x86::ram_layout(32 << 20).unwrap(), &RamBacking::Anonymous).unwrap()
}

fn create(ram: &GuestRam, vcpus: u8) -> CreatedVm {
    let soft = soft_backend::open(soft_backend::SoftOptions::default()).unwrap();
    let host = soft.capabilities().x86.clone().unwrap();
    let (cpuid, msrs) = x86::build_profile(CpuProfile::V1, &host.cpuid).unwrap();
    let arch = ArchSpec::X86(X86Spec {
        cpuid,
        msrs,
        tsc_khz: host.tsc_khz,
    });
    soft.create_vm(&VmSpec {
        ram: ram.clone(),
        vcpus,
        arch,
    })
    .unwrap()
}

/// Flat 32-bit protected mode at `rip`, without paging, stack at 1 MiB.
fn protected(rip: u64) -> X86VcpuState {
    let mut s = X86VcpuState::reset(0);
    let flat = |selector, attributes| Segment {
        selector,
        limit: u32::MAX,
        attributes,
        ..Segment::default()
    };
    s.system.cs = flat(8, 0xc09b);
    for d in [&mut s.system.ds, &mut s.system.es, &mut s.system.ss] {
        *d = flat(16, 0xc093);
    }
    s.system.cr0 = 0x11;
    s.general.rip = rip;
    s.general.rsp = 0x10_0000;
    s
}

fn x86(state: VcpuState) -> X86VcpuState {
    match state {
        VcpuState::X86(s) => *s,
        other => panic!("{other:?}"),
    }
}

/// `again: inc ecx; mov [0x20_0000], ecx; test ecx, 0xfffff; jnz again; out 0x80, eax; jmp again`
const COUNTER: [u8; 19] = [
    0x41, 0x89, 0x0d, 0, 0, 0x20, 0, 0xf7, 0xc1, 0xff, 0xff, 0x0f, 0, 0x75, 0xf1, 0xe7, 0x80, 0xeb,
    0xed,
];

#[test]
fn a_kicked_vcpu_saves_and_goes_on_in_another_vm() {
    let first = ram();
    first
        .write_slice(&COUNTER, GuestAddress(0x10_0000))
        .unwrap();
    let mut vm = create(&first, 1);
    let binder = vm.vcpus.remove(0);
    let kick = binder.kicker();
    let (tx, rx) = channel();
    let thread = std::thread::spawn(move || {
        let mut vcpu = binder.bind().unwrap();
        vcpu.load(&VcpuState::X86(Box::new(protected(0x10_0000))))
            .unwrap();
        let stop = vcpu.run(&mut Ports(tx)).unwrap();
        assert_eq!(stop, VcpuStop::Kicked);
        vcpu.save().unwrap()
    });
    rx.recv().unwrap();
    kick.kick();
    let state = x86(thread.join().unwrap());
    let count = state.general.rcx;
    assert!(count >= 1 << 20);
    let stored: u32 = first.read_obj(GuestAddress(0x20_0000)).unwrap();
    assert!(u64::from(stored).abs_diff(count) <= 1);

    let second = ram();
    let mut all = vec![0; 32 << 20];
    first.read_slice(&mut all, GuestAddress(0)).unwrap();
    second.write_slice(&all, GuestAddress(0)).unwrap();
    let mut vm = create(&second, 1);
    let binder = vm.vcpus.remove(0);
    let kick = binder.kicker();
    let (tx, rx) = channel();
    let mut vcpu = binder.bind().unwrap();
    let saved = VcpuState::X86(Box::new(state.clone()));
    vcpu.load(&saved).unwrap();
    let again = x86(vcpu.save().unwrap());
    assert_eq!(again.general, state.general);
    assert_eq!(again.system, state.system);
    assert_eq!(again.xsave, state.xsave);
    assert_eq!(again.lapic, state.lapic);
    let stopper = std::thread::spawn(move || {
        rx.recv().unwrap();
        kick.kick();
    });
    vcpu.run(&mut Ports(tx)).unwrap();
    stopper.join().unwrap();
    assert!(x86(vcpu.save().unwrap()).general.rcx > count);
}

#[test]
fn the_dirty_set_is_exact() {
    let ram = ram();
    // inc dword [ebx]; out 0x80, al; hlt; jmp back
    let code = [0xff, 0x03, 0xe6, 0x80, 0xf4, 0xeb, 0xf9];
    ram.write_slice(&code, GuestAddress(0x10_0000)).unwrap();
    let mut vm = create(&ram, 1);
    let tracker = DirtyTracker::new(ram, vm.vm.clone());
    let binder = vm.vcpus.remove(0);
    let kick = binder.kicker();
    let mut vcpu = binder.bind().unwrap();
    let (tx, rx) = channel();
    let mut ports = Ports(tx);
    let mut state = protected(0x10_0000);
    tracker.start().unwrap();
    for page in [5u64, 6, 6, 700] {
        state.general.rip = 0x10_0000;
        state.general.rbx = 0x40_0000 + page * 4096;
        vcpu.load(&VcpuState::X86(Box::new(state.clone()))).unwrap();
        let k = kick.clone();
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            k.kick();
        });
        assert_eq!(vcpu.run(&mut ports).unwrap(), VcpuStop::Kicked);
        stopper.join().unwrap();
        rx.recv().unwrap();
        let pages: Vec<Gpa> = tracker.take().unwrap().pages().collect();
        assert_eq!(pages, [Gpa(0x40_0000 + page * 4096)]);
        assert!(tracker.take().unwrap().is_empty());
    }
}

#[test]
fn a_message_wakes_a_halted_vcpu() {
    let ram = ram();
    // IDT at 0x5000: vector 0x41 to 0x11_0000.
    let gate = 0x0000_8e00_0008_0000_u64 | 0x11 << 48;
    ram.write_obj(gate, GuestAddress(0x5000 + 8 * 0x41))
        .unwrap();
    let gdt = [0u64, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
    for (i, d) in gdt.into_iter().enumerate() {
        ram.write_obj(d, GuestAddress(0x4000 + 8 * i as u64))
            .unwrap();
    }
    // mov dword [0xfee000f0], 0x1ff; out 0x81, al; sti; hlt; hlt
    let code = [
        0xc7, 0x05, 0xf0, 0, 0xe0, 0xfe, 0xff, 1, 0, 0, 0xe6, 0x81, 0xfb, 0xf4, 0xf4,
    ];
    ram.write_slice(&code, GuestAddress(0x10_0000)).unwrap();
    // out 0x82, al; mov dword [0xfee000b0], 0; iret
    let handler = [
        0xe6, 0x82, 0xc7, 0x05, 0xb0, 0, 0xe0, 0xfe, 0, 0, 0, 0, 0xcf,
    ];
    ram.write_slice(&handler, GuestAddress(0x11_0000)).unwrap();
    let mut vm = create(&ram, 1);
    let binder = vm.vcpus.remove(0);
    let kick = binder.kicker();
    let (tx, rx) = channel();
    let thread = std::thread::spawn(move || {
        let mut vcpu = binder.bind().unwrap();
        let mut state = protected(0x10_0000);
        state.system.gdt = x86::DescriptorTable {
            base: 0x4000,
            limit: 0x17,
        };
        state.system.idt = x86::DescriptorTable {
            base: 0x5000,
            limit: 0x7ff,
        };
        vcpu.load(&VcpuState::X86(Box::new(state))).unwrap();
        vcpu.run(&mut Ports(tx)).unwrap();
        vcpu.save().unwrap()
    });
    assert_eq!(rx.recv().unwrap().0, 0x81);
    std::thread::sleep(Duration::from_millis(20));
    let msi = MsiMessage {
        address: 0xfee0_0000,
        data: 0x41,
    };
    vm.vm.msi().unwrap().deliver(msi).unwrap();
    assert_eq!(rx.recv_timeout(Duration::from_secs(20)).unwrap().0, 0x82);
    std::thread::sleep(Duration::from_millis(20));
    kick.kick();
    let state = x86(thread.join().unwrap());
    assert_eq!(
        (state.mp_state, state.general.rip),
        (MpState::Halted, 0x10_000f)
    );
}

#[test]
fn vcpus_start_each_other_and_lock_counts() {
    let ram = ram();
    // vCPU 0: APIC on; INIT and SIPI (page 0x20) to vCPU 1; then the common loop.
    let start = [
        0xc7, 0x05, 0xf0, 0, 0xe0, 0xfe, 0xff, 1, 0, 0, // mov [spurious], 0x1ff
        0xc7, 0x05, 0x10, 3, 0xe0, 0xfe, 0, 0, 0, 1, // mov [icr high], 1 << 24
        0xc7, 0x05, 0, 3, 0xe0, 0xfe, 0, 0x45, 0, 0, // INIT
        0xc7, 0x05, 0, 3, 0xe0, 0xfe, 0x20, 0x46, 0, 0, // SIPI
        0xb9, 0x40, 0x0d, 3, 0, // mov ecx, 200000
        0xf0, 0xff, 0x05, 0, 0, 3, 0, // again: lock inc dword [0x30000]
        0x49, 0x75, 0xf6, // dec ecx; jnz again
        0xe6, 0x80, 0xf4, // out 0x80, al; hlt
    ];
    ram.write_slice(&start, GuestAddress(0x10_0000)).unwrap();
    // vCPU 1 in real mode: mov ax, 0x3000; mov ds, ax; mov ecx, 200000; again: lock inc dword [0];
    // dec ecx; jnz again; out 0x81, al; hlt
    let other = [
        0xb8, 0, 0x30, 0x8e, 0xd8, 0x66, 0xb9, 0x40, 0x0d, 3, 0, 0xf0, 0x66, 0xff, 6, 0, 0, 0x66,
        0x49, 0x75, 0xf6, 0xe6, 0x81, 0xf4,
    ];
    ram.write_slice(&other, GuestAddress(0x2_0000)).unwrap();
    let vm = create(&ram, 2);
    let kicks: Vec<_> = vm.vcpus.iter().map(|b| b.kicker()).collect();
    let (tx, rx) = channel();
    // State is loaded before anybody runs: a start-up IPI to a vCPU that is loaded later is lost.
    let loaded = Arc::new(std::sync::Barrier::new(2));
    let threads: Vec<_> = (0u8..)
        .zip(vm.vcpus)
        .map(|(i, binder)| {
            let (tx, loaded) = (tx.clone(), loaded.clone());
            std::thread::spawn(move || {
                let mut vcpu = binder.bind().unwrap();
                let state = if i == 0 {
                    protected(0x10_0000)
                } else {
                    X86VcpuState::reset(i)
                };
                vcpu.load(&VcpuState::X86(Box::new(state))).unwrap();
                loaded.wait();
                vcpu.run(&mut Ports(tx)).unwrap()
            })
        })
        .collect();
    let mut ports: Vec<u16> = (0..2)
        .map(|_| rx.recv_timeout(Duration::from_secs(60)).unwrap().0)
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [0x80, 0x81]);
    kicks.iter().for_each(|k| k.kick());
    for t in threads {
        assert_eq!(t.join().unwrap(), VcpuStop::Kicked);
    }
    assert_eq!(
        ram.read_obj::<u32>(GuestAddress(0x3_0000)).unwrap(),
        400_000
    );
}

#[test]
fn the_clock_goes_on_from_where_it_was() {
    let vm = create(&ram(), 1);
    let clock = vm.vm.x86_clock().unwrap();
    clock
        .load(&ClockState {
            guest_nanoseconds: 5_000_000_000,
        })
        .unwrap();
    let begin = Instant::now();
    std::thread::sleep(Duration::from_millis(5));
    let now = clock.save().unwrap().guest_nanoseconds;
    let passed = begin.elapsed().as_nanos() as u64;
    assert!(now >= 5_005_000_000 && now <= 5_000_000_000 + passed + 1_000_000);
}

#[test]
fn impossible_state_is_refused() {
    let vm = create(&ram(), 1);
    let mut vcpu = vm.vcpus.into_iter().next().unwrap().bind().unwrap();
    type Spoil = fn(&mut X86VcpuState);
    let spoils: [Spoil; 5] = [
        |s| s.system.cr0 = 0x8000_0010,
        |s| s.system.efer = 0x400,
        |s| s.xcr0 = 7,
        |s| s.xsave[0].bytes.truncate(3),
        |s| {
            s.msrs.push(x86::Msr {
                index: 0xdead,
                value: 1,
            })
        },
    ];
    for spoil in spoils {
        let mut s = protected(0);
        spoil(&mut s);
        assert!(vcpu.load(&VcpuState::X86(Box::new(s))).is_err());
    }
    vcpu.load(&VcpuState::X86(Box::new(protected(0)))).unwrap();
    let _: Arc<dyn vmm_core::hypervisor::Vm> = vm.vm;
}

#[test]
fn an_event_whose_delivery_had_begun_is_saved_as_it_was_loaded() {
    let begun = |change: fn(&mut x86::PendingEvents)| {
        let mut events = x86::PendingEvents::default();
        change(&mut events);
        events
    };
    let all = [
        begun(|e| {
            e.interrupt = Some(x86::PendingInterrupt {
                vector: 0x41,
                soft: false,
            });
        }),
        begun(|e| {
            e.exception = Some(x86::PendingException {
                vector: 14,
                error_code: Some(6),
                injected: true,
            });
            e.shadow.sti = true;
        }),
        begun(|e| (e.nmi_injected, e.nmi_masked) = (true, true)),
        begun(|e| (e.nmi_injected, e.nmi_masked, e.nmi_pending) = (true, true, true)),
        begun(|e| e.shadow.mov_ss = true),
    ];
    for events in all {
        let vm = create(&ram(), 1);
        let mut vcpu = vm.vcpus.into_iter().next().unwrap().bind().unwrap();
        let mut state = protected(0x10_0000);
        state.events = events;
        vcpu.load(&VcpuState::X86(Box::new(state))).unwrap();
        assert_eq!(x86(vcpu.save().unwrap()).events, events);
    }
}

#[test]
fn an_interrupt_whose_delivery_had_begun_is_delivered_before_anything_else_runs() {
    let ram = ram();
    let gate = 0x0000_8e00_0008_0000_u64 | 0x11 << 48;
    ram.write_obj(gate, GuestAddress(0x5000 + 8 * 0x41))
        .unwrap();
    let gdt = [0u64, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
    for (i, d) in gdt.into_iter().enumerate() {
        ram.write_obj(d, GuestAddress(0x4000 + 8 * i as u64))
            .unwrap();
    }
    // out 0x81, al; hlt
    ram.write_slice(&[0xe6, 0x81, 0xf4], GuestAddress(0x10_0000))
        .unwrap();
    // out 0x82, al; iret
    ram.write_slice(&[0xe6, 0x82, 0xcf], GuestAddress(0x11_0000))
        .unwrap();
    let mut vm = create(&ram, 1);
    let binder = vm.vcpus.remove(0);
    let kick = binder.kicker();
    let (tx, rx) = channel();
    let mut state = protected(0x10_0000);
    state.system.gdt = x86::DescriptorTable {
        base: 0x4000,
        limit: 0x17,
    };
    state.system.idt = x86::DescriptorTable {
        base: 0x5000,
        limit: 0x7ff,
    };
    // Neither the flag nor the shadow holds back what was acknowledged before.
    state.events.interrupt = Some(x86::PendingInterrupt {
        vector: 0x41,
        soft: false,
    });
    state.events.shadow.sti = true;
    let thread = std::thread::spawn(move || {
        let mut vcpu = binder.bind().unwrap();
        vcpu.load(&VcpuState::X86(Box::new(state))).unwrap();
        vcpu.run(&mut Ports(tx)).unwrap();
        x86(vcpu.save().unwrap())
    });
    let ports: Vec<u16> = (0..2).map(|_| rx.recv().unwrap().0).collect();
    assert_eq!(ports, [0x82, 0x81]);
    kick.kick();
    assert_eq!(thread.join().unwrap().events, x86::PendingEvents::default());
}

/// `mov al, n; out 0x80, al; jmp $`: says so and waits to be kicked.
fn says(n: u8) -> [u8; 6] {
    [0xb0, n, 0xe6, 0x80, 0xeb, 0xfe]
}

/// A vCPU runs on, and its state and memory are put back again and again: what it decoded before counts only where memory is the same.
#[test]
fn what_was_decoded_counts_after_a_return_only_where_memory_is_the_same() {
    const CODE: u64 = 0x10_0000;
    let ram = ram();
    // Often enough to be translated: 5,000 rounds of `dec ecx; jnz`, then what `says` does, in the page after.
    let warm = [
        &[0xb9, 0x88, 0x13, 0, 0, 0x49, 0x75, 0xfd, 0xe9][..],
        &(0x1000_u32 - 13).to_le_bytes(),
    ];
    ram.write_slice(&warm.concat(), GuestAddress(CODE)).unwrap();
    let says_at = CODE + 0x1000;
    ram.write_slice(&says(1), GuestAddress(says_at)).unwrap();
    let mut vm = create(&ram, 1);
    let binder = vm.vcpus.remove(0);
    let kick = binder.kicker();
    let (tx, rx) = channel();
    let mut vcpu = binder.bind().unwrap();
    let begin = VcpuState::X86(Box::new(protected(CODE)));
    let kicker = std::thread::spawn(move || {
        rx.into_iter()
            .map(|(_, said)| {
                kick.kick();
                said
            })
            .collect::<Vec<_>>()
    });
    let run = |vcpu: &mut dyn vmm_core::hypervisor::Vcpu| {
        vcpu.load(&begin).unwrap();
        assert_eq!(vcpu.run(&mut Ports(tx.clone())).unwrap(), VcpuStop::Kicked);
    };
    run(&mut *vcpu);
    run(&mut *vcpu);
    ram.write_slice(&says(2), GuestAddress(says_at)).unwrap();
    run(&mut *vcpu);

    struct Says(u8);
    impl FillSource for Says {
        fn read_chunk(
            &self,
            _: ChunkIndex,
            into: &mut [u8],
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            into.fill(0);
            into[0x1000..][..6].copy_from_slice(&says(self.0));
            // jmp CODE + 0x1000
            into[..5].copy_from_slice(&[0xe9, 0xfb, 0x0f, 0, 0]);
            Ok(())
        }
    }
    let chunk = ram.layout().chunk_at(Gpa(CODE)).unwrap();
    ram.begin_fill([chunk], Arc::new(Says(3)));
    run(&mut *vcpu);
    drop(tx);
    // Written by others, and from another source.
    assert_eq!(kicker.join().unwrap(), [1, 1, 2, 3]);
}

#[test]
fn a_state_goes_on_at_its_own_rate() {
    let ram = ram();
    ram.write_slice(&[0xeb, 0xfe], GuestAddress(0x10_0000))
        .unwrap();
    let mut vm = create(&ram, 1);
    let binder = vm.vcpus.remove(0);
    let kick = binder.kicker();
    let mut vcpu = binder.bind().unwrap();
    let host = soft_backend::open(soft_backend::SoftOptions::default()).unwrap();
    let khz = host.capabilities().x86.as_ref().unwrap().tsc_khz;
    // A hundred times as quick: whatever the host does meanwhile, the ticks are too many for the rate before.
    vcpu.set_tsc_rate(khz * 100).unwrap();
    vcpu.load(&VcpuState::X86(Box::new(protected(0x10_0000))))
        .unwrap();
    let ticks = |state: VcpuState| x86(state).msr(x86::msr::TSC).unwrap();
    let (before, begin) = (ticks(vcpu.save().unwrap()), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            kick.kick();
        });
        let (tx, _rx) = channel();
        vcpu.run(&mut Ports(tx)).unwrap();
    });
    let (took, passed) = (begin.elapsed(), ticks(vcpu.save().unwrap()) - before);
    let slow = took.as_millis() as u64 * u64::from(khz);
    assert!(passed > 10 * slow, "{passed} ticks in {took:?}");
}
