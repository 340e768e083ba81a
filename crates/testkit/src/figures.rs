//! Figures of benchmarks and proofs: a master's own counters, and what many measurements come to.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::http;

/// A master under load answers late.
const WITHIN: Duration = Duration::from_secs(10);

/// A counter or gauge of the master with this admin address, such as `master_evicted_key_count`.
///
/// # Errors
/// When the master does not answer, or has no figure of that name.
pub fn master_figure(admin: &str, name: &str) -> Result<f64> {
    let text = http::get_within(&format!("{admin}/metrics"), WITHIN)?;
    let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
    let value = line.and_then(|line| line.rsplit(' ').next());
    let value = value.with_context(|| format!("the master has no figure {name}"))?;
    value
        .parse()
        .with_context(|| format!("{name} is not a number: {value}"))
}

/// The processor time that all threads of a process have used, in microseconds, to the hundredth of a second.
///
/// # Errors
/// When there is no such process.
pub fn cpu_us(pid: u32) -> Result<f64> {
    /// The kernel counts another process's time in hundredths of a second.
    const TICK: f64 = 1e4;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("no process {pid}"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // The fields after the name that hold the time in user mode and in the kernel.
    let ticks = fields.skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks * TICK)
}

/// The processor time that all threads of this process have used, in microseconds.
pub fn own_cpu_us() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(used).map_or(f64::NAN, |used| used.as_secs_f64() * 1e6)
}

/// The figure that a share `q` of all figures does not exceed, to the nearest one; not a number if there are none. Sorts
/// them.
pub fn quantile(figures: &mut [f64], q: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index between 0 and the length"
    )]
    let at = (figures.len().saturating_sub(1) as f64 * q).round() as usize;
    figures.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_figures() {
        let mut figures = [3.0, 1.0, 2.0, 5.0, 4.0];
        assert_eq!(
            [0.0, 0.5, 0.99, 1.0].map(|q| quantile(&mut figures, q)),
            [1.0, 3.0, 5.0, 5.0]
        );
        assert!(quantile(&mut [], 0.5).is_nan());
    }
}
