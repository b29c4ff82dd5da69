//! Decodes branches, calls, and exits.

use super::opcode::Opcode;
use super::{Binding, Decoder, MAX_CALL_DEPTH, Result};
use crate::exec::inst::{Action, Class};
use crate::exec::lanes::TRUE;
use crate::ptx::{Function, Operand, Variable};
use std::collections::HashMap;

impl Decoder<'_> {
    /// Decodes a control flow instruction. Returns false for other instructions.
    pub fn control(&mut self, op: &mut Opcode) -> Result<bool> {
        match op.name {
            "bra" => {
                op.take("uni");
                op.expect(1..=1)?;
                let label = self.label(op.operand(0)?)?;
                self.emit(Class::Control, Action::Branch(label));
            }
            "brx" => self.branch_indexed(op)?,
            "call" => self.call(op)?,
            "ret" => {
                op.take("uni");
                match self.calls.last() {
                    None => self.emit(Class::Control, Action::Exit),
                    Some((_, end)) => {
                        let end = *end as u32;
                        self.emit(Class::Control, Action::Branch(end));
                    }
                }
            }
            "exit" => self.emit(Class::Control, Action::Exit),
            "trap" | "brkpt" => self.emit(Class::Control, Action::Trap),
            "membar" | "fence" => {
                let is_of_proxy = op.take("proxy") && op.take("async");
                let is_of_mbarriers = op.take("mbarrier_init");
                let words = [
                    "sc",
                    "acq_rel",
                    "acquire",
                    "release",
                    "cta",
                    "cluster",
                    "gpu",
                    "sys",
                    "gl",
                    "alias",
                    "shared::cta",
                ];
                op.ignore(&words);
                let action = if is_of_proxy {
                    Action::ProxyFence
                } else if is_of_mbarriers {
                    Action::MbarrierFence
                } else {
                    Action::Nothing
                };
                self.emit(Class::Synchronize, action);
            }
            "nanosleep" => {
                op.kind()?;
                self.emit(Class::Synchronize, Action::Nothing);
            }
            "griddepcontrol" => {
                let action = if op.take("wait") {
                    Action::GridWait
                } else {
                    op.take("launch_dependents");
                    Action::Nothing
                };
                self.emit(Class::Synchronize, action);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn label(&self, operand: &Operand) -> Result<u32> {
        if let Operand::Name(name) = operand
            && let Binding::Label(label) = self.lookup(name)?
        {
            return Ok(label as u32);
        }
        self.error(format!("expected a label, found {operand:?}"))
    }

    fn branch_indexed(&mut self, op: &mut Opcode) -> Result<()> {
        op.ignore(&["idx", "uni"]);
        op.expect(2..=2)?;
        let index = self.source(op.operand(0)?, 4)?;
        let Operand::Name(name) = op.operand(1)? else {
            return self.error("invalid operand of `brx.idx`: expected the name of a target list");
        };
        let Some(targets) = self.tables.get(name).cloned() else {
            return self.error(format!("unknown target list `{name}`"));
        };
        let labels = targets.into_iter().map(|target| self.label(&Operand::Name(target)));
        let labels = labels.collect::<Result<_>>()?;
        self.emit(Class::Control, Action::BranchIndexed(index, labels));
        Ok(())
    }

    /// Decodes `call (results), function, (arguments)`. The function is inlined, with its parameters bound to
    /// the caller's variables.
    fn call(&mut self, op: &mut Opcode) -> Result<()> {
        op.take("uni");
        let mut lists = Vec::new();
        let mut name = None;
        for i in 0..op.len() {
            match op.operand(i)? {
                Operand::List(list) => lists.push((name.is_some(), list)),
                Operand::Name(n) if name.is_none() => name = Some(n.as_str()),
                other => return self.error(format!("unsupported operand of a call: {other:?}")),
            }
        }
        let name = name.unwrap_or_default();
        let list = |is_after| {
            lists
                .iter()
                .find(|(after, _)| *after == is_after)
                .map_or(&[][..], |(_, l)| l.as_slice())
        };
        let (results, arguments) = (list(false), list(true));
        let module = self.module;
        let Some(function) = module.functions.iter().find(|f| f.name == name && !f.is_entry) else {
            return self.call_builtin(name);
        };
        if self.calls.len() == MAX_CALL_DEPTH || self.calls.iter().any(|(caller, _)| caller == name) {
            return self.error(format!(
                "cannot inline `{name}`: the function is recursive, or calls are nested too deeply"
            ));
        }
        let mut scope = HashMap::new();
        self.bind_arguments(&function.returns, results, &mut scope)?;
        self.bind_arguments(&function.params, arguments, &mut scope)?;
        self.write_body(function, scope)
    }

    fn bind_arguments(
        &self,
        params: &[Variable],
        given: &[Operand],
        scope: &mut HashMap<String, Binding>,
    ) -> Result<()> {
        if params.len() != given.len() {
            return self.error(format!(
                "expected {} arguments or results in a call, found {}",
                params.len(),
                given.len()
            ));
        }
        for (param, operand) in params.iter().zip(given) {
            let Operand::Name(name) = operand else {
                return self.error(format!("unsupported argument of a call: {operand:?}"));
            };
            scope.insert(param.name.clone(), self.lookup(name)?);
        }
        Ok(())
    }

    fn write_body(&mut self, function: &Function, scope: HashMap<String, Binding>) -> Result<()> {
        let (line, guard) = (self.line, self.guard);
        let end = self.new_label();
        let skip = (guard != (TRUE, 0)).then_some(());
        if skip.is_some() {
            // Lanes with a false guard skip the call.
            self.guard = (guard.0, !guard.1);
            self.emit(Class::Control, Action::Branch(end as u32));
        }
        // The names of the caller are not visible in the function.
        let outer = std::mem::replace(&mut self.scopes, vec![scope]);
        self.calls.push((function.name.clone(), end));
        self.items(&function.body)?;
        self.calls.pop();
        self.scopes = outer;
        self.labels[end] = Some(self.code.len() as u32);
        (self.line, self.guard) = (line, guard);
        Ok(())
    }

    /// Decodes a call of a function that the driver provides.
    fn call_builtin(&mut self, name: &str) -> Result<()> {
        match name {
            "__assertfail" => self.emit(Class::Control, Action::Trap),
            _ => return self.error(format!("unknown function `{name}`")),
        }
        Ok(())
    }
}
