//! The least core that can call the handlers: operands as the contract says.

use super::context::{Context, MEM_BYTES};
use iced_x86::{Instruction, OpKind, Register};
use soft_backend::fpu::image::FxLayout;
use soft_backend::fpu::{FpState, x87};
use soft_backend::simd::{self, Exec, Operand, SimdHandler};

/// What the emulation of one instruction left behind.
#[derive(Clone)]
pub(crate) struct Emulated {
    pub(crate) state: FpState,
    pub(crate) gpr: [u64; 3],
    pub(crate) rflags: u64,
    pub(crate) mem: [u8; MEM_BYTES],
    pub(crate) faulted: bool,
}

const ARITHMETIC_FLAGS: u64 = 0x8d5;

impl Emulated {
    pub(crate) fn from_context(context: &Context) -> Self {
        let mut state = FpState::default();
        state.fxrstor(&context.fx, FxLayout::FULL).unwrap();
        Self {
            state,
            gpr: context.gpr,
            rflags: context.flags_in,
            mem: context.mem,
            faulted: false,
        }
    }

    fn load(&self, bytes: usize) -> u128 {
        let mut value = [0; 16];
        value[..bytes].copy_from_slice(&self.mem[..bytes]);
        u128::from_le_bytes(value)
    }

    fn store(&mut self, value: u128, bytes: usize) {
        self.mem[..bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }

    /// Executes; `None` if there is no handler.
    pub(crate) fn execute(&mut self, instruction: &Instruction) -> Option<()> {
        let memory = (0..instruction.op_count()).any(|n| instruction.op_kind(n) == OpKind::Memory);
        if let Some(handler) = x87::lookup(instruction.code()) {
            self.x87(handler, x87::st_index(instruction));
        } else {
            let handler = simd::lookup(instruction.code(), memory)?;
            self.faulted = self.simd(&handler, instruction).is_err();
        }
        Some(())
    }

    fn x87(&mut self, handler: x87::X87Handler, i: u8) {
        let s = &mut self.state;
        let format = |small| x87::EnvFormat { small, real: false };
        match handler.exec {
            x87::Exec::Reg(run) => run(s, i),
            x87::Exec::Load { bytes, run } => {
                let value = self.load(bytes.into());
                run(&mut self.state, value);
            }
            x87::Exec::Store { bytes, run } => {
                if let Some(value) = run(s) {
                    self.store(value, bytes.into());
                }
            }
            x87::Exec::Flags(run) => {
                let flags = run(s, i);
                self.rflags = self.rflags & !ARITHMETIC_FLAGS | u64::from(flags);
            }
            x87::Exec::CondMove(run) => run(s, i, self.rflags),
            x87::Exec::StatusToAx => {
                self.gpr[0] = self.gpr[0] & !0xffff | u64::from(s.status_word());
            }
            x87::Exec::StoreEnv { small } => {
                let bytes = format(small).env_bytes();
                self.mem[..bytes].copy_from_slice(&s.store_env(format(small))[..bytes]);
                s.mask_all();
            }
            x87::Exec::LoadEnv { small } => {
                let image = std::array::from_fn(|n| self.mem[n]);
                s.load_env(&image, format(small));
            }
            x87::Exec::Save { small } => {
                let bytes = format(small).save_bytes();
                self.mem[..bytes].copy_from_slice(&s.save(format(small))[..bytes]);
                s.fninit();
            }
            x87::Exec::Restore { small } => {
                let image = std::array::from_fn(|n| self.mem[n]);
                s.restore(&image, format(small));
            }
        }
    }

    fn gpr_index(register: Register) -> usize {
        match register.full_register() {
            Register::RAX => 0,
            Register::RCX => 1,
            Register::RDX => 2,
            other => panic!("unexpected register {other:?}"),
        }
    }

    fn read(&mut self, operand: Operand, register: Register) -> u128 {
        match operand {
            Operand::None => 0,
            Operand::Xmm => self.state.xmm[register.number()],
            Operand::Mmx => self.state.mmx_read(register.number()).into(),
            Operand::Gpr32 => u128::from(self.gpr[Self::gpr_index(register)] as u32),
            Operand::Gpr64 => self.gpr[Self::gpr_index(register)].into(),
            Operand::Mem { bytes, .. } => self.load(bytes.into()),
        }
    }

    fn write(&mut self, operand: Operand, register: Register, value: u128) {
        match operand {
            Operand::None => {}
            Operand::Xmm => self.state.xmm[register.number()] = value,
            Operand::Mmx => self.state.mmx_write(register.number(), value as u64),
            Operand::Gpr32 => self.gpr[Self::gpr_index(register)] = u64::from(value as u32),
            Operand::Gpr64 => self.gpr[Self::gpr_index(register)] = value as u64,
            Operand::Mem { bytes, .. } => self.store(value, bytes.into()),
        }
    }

    fn simd(&mut self, h: &SimdHandler, insn: &Instruction) -> Result<(), simd::SimdFault> {
        let (first, second) = (insn.op_register(0), insn.op_register(1));
        let last = insn.op_count().saturating_sub(1);
        let imm = if insn.op_kind(last) == OpKind::Immediate8 {
            insn.immediate8()
        } else {
            0
        };
        match h.exec {
            Exec::Emms => self.state.emms(),
            Exec::MaskMove(run) => {
                let (a, b) = (insn.op_register(1), insn.op_register(2));
                let class = if a.is_mm() {
                    Operand::Mmx
                } else {
                    Operand::Xmm
                };
                let (value, mask) = (self.read(class, a), self.read(class, b));
                let (value, select) = run(value, mask);
                for (n, byte) in value.to_le_bytes().into_iter().enumerate() {
                    if select >> n & 1 != 0 {
                        self.mem[n] = byte;
                    }
                }
            }
            Exec::String {
                run,
                explicit,
                wide,
                index,
            } => {
                let a = self.state.xmm[first.number()];
                let b = self.read(h.src, second);
                let length = |v: u64| if wide { v as i64 } else { i64::from(v as i32) };
                let (la, lb) = if explicit {
                    (length(self.gpr[0]), length(self.gpr[2]))
                } else {
                    (0, 0)
                };
                let result = run(a, b, la, lb, imm);
                self.rflags = self.rflags & !ARITHMETIC_FLAGS | u64::from(result.flags);
                if index {
                    self.gpr[1] = result.index.into();
                } else {
                    self.state.xmm[0] = result.mask;
                }
            }
            _ => {
                let source = self.read(h.src, second);
                let s = &mut self.state;
                match h.exec {
                    Exec::Copy => self.write(h.dst, first, source),
                    Exec::Xmm(run) => run(s, first.number(), source, imm)?,
                    Exec::Mmx(run) => run(s, first.number(), source, imm)?,
                    Exec::Value(run) => {
                        let value = run(s, source, imm)?;
                        self.write(h.dst, first, value);
                    }
                    Exec::Flags(run) => {
                        let flags = run(s, first.number(), source)?;
                        self.rflags = self.rflags & !ARITHMETIC_FLAGS | u64::from(flags);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
