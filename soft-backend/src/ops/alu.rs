//! Two-operand arithmetic and logic, INC, DEC, NEG, NOT.

use crate::cpu::flags::LazyFlags;
use crate::cpu::{Cpu, Flow, Step};
use crate::decode::op::Op;
use crate::int::Int;

/// A two-operand operation: sets flags, gives the result.
pub(crate) trait Binary {
    fn run<T: Int>(f: &mut LazyFlags, a: T, b: T) -> T;
}

macro_rules! binary {
    ($name:ident, |$f:ident, $a:ident, $b:ident| $body:expr) => {
        pub(crate) struct $name;
        impl Binary for $name {
            #[inline(always)]
            fn run<T: Int>($f: &mut LazyFlags, $a: T, $b: T) -> T {
                $body
            }
        }
    };
}

binary!(Add, |f, a, b| {
    let r = T::cut(a.u64().wrapping_add(b.u64()));
    f.set_add(a, b, r);
    r
});
binary!(Adc, |f, a, b| {
    let r = T::cut(
        a.u64()
            .wrapping_add(b.u64())
            .wrapping_add(u64::from(f.cf())),
    );
    f.set_add(a, b, r);
    r
});
binary!(Sub, |f, a, b| {
    let r = T::cut(a.u64().wrapping_sub(b.u64()));
    f.set_sub(a, b, r);
    r
});
binary!(Sbb, |f, a, b| {
    let r = T::cut(
        a.u64()
            .wrapping_sub(b.u64())
            .wrapping_sub(u64::from(f.cf())),
    );
    f.set_sub(a, b, r);
    r
});
binary!(And, |f, a, b| {
    let r = T::cut(a.u64() & b.u64());
    f.set_logic(r);
    r
});
binary!(Or, |f, a, b| {
    let r = T::cut(a.u64() | b.u64());
    f.set_logic(r);
    r
});
binary!(Xor, |f, a, b| {
    let r = T::cut(a.u64() ^ b.u64());
    f.set_logic(r);
    r
});

#[inline(always)]
fn imm<T: Int>(op: &Op) -> T {
    T::cut(op.imm as i64 as u64)
}

pub(crate) fn rr<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let (a, b) = (cpu.get::<T>(op.dst), cpu.get::<T>(op.src));
    let r = B::run(&mut cpu.lazy, a, b);
    cpu.set(op.dst, r);
    Ok(Flow::Next)
}

pub(crate) fn ri<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let a = cpu.get::<T>(op.dst);
    let r = B::run(&mut cpu.lazy, a, imm::<T>(op));
    cpu.set(op.dst, r);
    Ok(Flow::Next)
}

pub(crate) fn rm<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, false)?;
    let b = cpu.read::<T>(at)?;
    let a = cpu.get::<T>(op.dst);
    let r = B::run(&mut cpu.lazy, a, b);
    cpu.set(op.dst, r);
    Ok(Flow::Next)
}

pub(crate) fn mr<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    let b = cpu.get::<T>(op.src);
    cpu.modify::<T>(at, |f, a| B::run(f, a, b))?;
    Ok(Flow::Next)
}

pub(crate) fn mi<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    cpu.modify::<T>(at, |f, a| B::run(f, a, imm::<T>(op)))?;
    Ok(Flow::Next)
}

pub(crate) fn lock_mr<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    let b = cpu.get::<T>(op.src);
    cpu.modify_locked::<T>(at, |f, a| B::run(f, a, b))?;
    Ok(Flow::Next)
}

pub(crate) fn lock_mi<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    cpu.modify_locked::<T>(at, |f, a| B::run(f, a, imm::<T>(op)))?;
    Ok(Flow::Next)
}

/// CMP (with `B` = [`Sub`]) and TEST (with [`And`]): the result is dropped.
pub(crate) fn cmp_rr<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let (a, b) = (cpu.get::<T>(op.dst), cpu.get::<T>(op.src));
    B::run(&mut cpu.lazy, a, b);
    Ok(Flow::Next)
}

pub(crate) fn cmp_ri<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let a = cpu.get::<T>(op.dst);
    B::run(&mut cpu.lazy, a, imm::<T>(op));
    Ok(Flow::Next)
}

pub(crate) fn cmp_rm<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, false)?;
    let b = cpu.read::<T>(at)?;
    let a = cpu.get::<T>(op.dst);
    B::run(&mut cpu.lazy, a, b);
    Ok(Flow::Next)
}

pub(crate) fn cmp_mr<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, false)?;
    let a = cpu.read::<T>(at)?;
    let b = cpu.get::<T>(op.src);
    B::run(&mut cpu.lazy, a, b);
    Ok(Flow::Next)
}

pub(crate) fn cmp_mi<T: Int, B: Binary>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, false)?;
    let a = cpu.read::<T>(at)?;
    B::run(&mut cpu.lazy, a, imm::<T>(op));
    Ok(Flow::Next)
}

/// A one-operand operation.
pub(crate) trait Unary {
    fn run<T: Int>(f: &mut LazyFlags, a: T) -> T;
}

macro_rules! unary {
    ($name:ident, |$f:ident, $a:ident| $body:expr) => {
        pub(crate) struct $name;
        impl Unary for $name {
            #[inline(always)]
            fn run<T: Int>($f: &mut LazyFlags, $a: T) -> T {
                $body
            }
        }
    };
}

unary!(Inc, |f, a| {
    let r = T::cut(a.u64().wrapping_add(1));
    f.set_inc(a, r);
    r
});
unary!(Dec, |f, a| {
    let r = T::cut(a.u64().wrapping_sub(1));
    f.set_dec(a, r);
    r
});
unary!(Neg, |f, a| {
    let r = T::cut(0u64.wrapping_sub(a.u64()));
    f.set_sub(T::cut(0), a, r);
    r
});
unary!(Not, |_f, a| T::cut(!a.u64()));

pub(crate) fn r<T: Int, U: Unary>(cpu: &mut Cpu, op: &Op) -> Step {
    let a = cpu.get::<T>(op.dst);
    let r = U::run(&mut cpu.lazy, a);
    cpu.set(op.dst, r);
    Ok(Flow::Next)
}

pub(crate) fn m<T: Int, U: Unary>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    cpu.modify::<T>(at, |f, a| U::run(f, a))?;
    Ok(Flow::Next)
}

pub(crate) fn lock_m<T: Int, U: Unary>(cpu: &mut Cpu, op: &Op) -> Step {
    let at = cpu.ea::<T>(op, true)?;
    cpu.modify_locked::<T>(at, |f, a| U::run(f, a))?;
    Ok(Flow::Next)
}
