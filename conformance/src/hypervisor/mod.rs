//! Bodies for everything that runs vCPUs.
//!
//! [`hypervisor_suite!`](crate::hypervisor_suite) lists them all.

pub mod avx;
pub mod breakpoints;
pub mod clock;
pub mod cpuid;
pub mod crossing;
pub mod dirty;
pub mod exceptions;
pub mod in_place;
pub mod interrupts;
pub mod kick;
pub mod memory_io;
pub mod modes;
pub mod neighbour;
pub mod pending_exit;
pub mod port_io;
pub mod self_modifying;
pub mod startup;
pub mod state;
pub mod user_mode;

/// Makes one `#[test]` of each body, for the backend that `$open` opens.
///
/// `$open` is a function that takes the test's name and returns the backend in an `Option`; it
/// returns `None` after saying by [`crate::skip`] why the test cannot run.
#[macro_export]
macro_rules! hypervisor_suite {
    ($open:ident) => {
        $crate::hypervisor_suite! { $open =>
            modes {
                real_mode_computes,
                protected_mode_computes,
                long_mode_computes,
                a_guest_goes_from_real_to_long_mode,
            }
            port_io {
                each_size_goes_out_and_comes_in,
                strings_go_element_by_element,
            }
            memory_io {
                each_size_is_read_and_written,
                read_modify_write_is_a_read_and_a_write,
                strings_move_between_device_and_memory,
                an_access_across_pages_arrives_whole,
            }
            state {
                everything_comes_back,
                what_comes_back_goes_on,
                an_older_list_of_msrs_loads,
                a_foreign_msr_is_refused,
            }
            avx {
                registers_go_on_elsewhere,
            }
            kick {
                before_run_nothing_is_executed,
                a_running_guest_is_stopped_and_goes_on,
                kicks_do_not_add_up,
                a_halted_guest_is_stopped,
                before_bind_counts,
            }
            pending_exit {
                a_port_read_completes_once,
                a_memory_read_completes_once,
                a_write_happens_once,
                a_string_read_goes_on_where_it_was,
            }
            interrupts {
                a_message_wakes_a_halted_guest,
                the_timer_wakes_a_halted_guest,
                a_periodic_timer_ticks,
                a_waiting_interrupt_is_saved,
                a_halted_guest_is_saved_halted,
                a_running_timer_is_saved,
                task_priority_holds_interrupts_back,
                the_end_of_a_level_interrupt_is_reported,
            }
            neighbour {
                ticks_wait_for_one_another,
                exits_change_nothing,
            }
            startup {
                a_second_vcpu_is_started,
                vcpus_interrupt_each_other,
                locked_operations_are_atomic,
                a_waiting_vcpu_is_saved,
                all_vcpus_are_started,
            }
            exceptions {
                a_division_by_zero,
                a_quotient_too_large,
                a_breakpoint,
                an_undefined_instruction,
                a_lazy_switch_of_sse_state,
                an_absent_segment,
                a_stack_out_of_range,
                a_selector_out_of_range,
                data_out_of_range,
                an_unknown_msr,
                a_reserved_control_bit,
                a_software_interrupt,
                page_faults_say_what_and_where,
                faults_in_delivery_become_others,
                a_triple_fault_is_reported,
            }
            breakpoints {
                code_and_data_stop_the_guest,
                breakpoints_come_back,
            }
            user_mode {
                system_calls_come_and_go,
                faults_of_user_code_switch_stacks,
            }
            dirty {
                exactly_the_written_pages,
                pages_are_armed_again,
                writes_by_devices_and_discards_count,
                what_is_given_back_is_taken_again,
                copies_made_while_the_guest_runs_converge,
            }
            in_place {
                a_machine_goes_back,
                a_machine_that_ended_goes_back,
                a_foreign_state_is_refused,
                the_disk_is_exchanged,
                memory_comes_while_the_guest_runs,
                lost_memory_ends_the_machine,
            }
            clock {
                the_tsc_goes_on_from_its_saved_value,
                kvm_clock_counts_nanoseconds,
                kvm_clock_stands_still_while_saved,
                tsc_and_kvm_clock_keep_step,
                a_stop_is_told,
                what_the_clock_writes_is_tracked,
            }
            cpuid {
                is_what_the_table_says,
                each_vcpu_has_its_own_id,
            }
            self_modifying {
                patched_code_runs_at_once,
                code_patched_through_an_alias_runs,
                code_written_by_a_device_runs,
            }
            crossing {
                a_program_goes_on_in_another_vm,
            }
        }
    };
    ($open:ident => $($module:ident { $($body:ident,)* })*) => {
        $(
            mod $module {
                $(
                    #[test]
                    fn $body() {
                        let name = concat!(stringify!($module), "::", stringify!($body));
                        if let Some(hypervisor) = super::$open(name) {
                            $crate::hypervisor::$module::$body(&*hypervisor);
                        }
                    }
                )*
            }
        )*
    };
}
