use std::time::Duration;

/// The median; of an even number, the upper of the middle two.
pub(crate) fn median<E>(times: impl Iterator<Item = Result<Duration, E>>) -> Result<Duration, E> {
    let mut times = times.collect::<Result<Vec<_>, E>>()?;
    times.sort_unstable();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default())
}
