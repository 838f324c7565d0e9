//! Memory by device, as models take it and a budget allows it.

use std::collections::BTreeMap;
use std::fmt;

use warmpath_common::host::RAM;

/// Memory on each device. Units: bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceBytes(BTreeMap<String, u64>);

impl<S: Into<String>> FromIterator<(S, u64)> for DeviceBytes {
    fn from_iter<I: IntoIterator<Item = (S, u64)>>(amounts: I) -> Self {
        let mut all = Self::default();
        for (device, bytes) in amounts {
            all.add(&device.into(), bytes);
        }
        all
    }
}

impl DeviceBytes {
    /// Returns an amount of the machine's own memory.
    pub fn ram(bytes: u64) -> Self {
        [(RAM, bytes)].into_iter().collect()
    }

    /// Returns the memory on a device.
    pub fn on(&self, device: &str) -> u64 {
        self.0.get(device).copied().unwrap_or(0)
    }

    /// Returns whether there is an entry for a device.
    pub fn knows(&self, device: &str) -> bool {
        self.0.contains_key(device)
    }

    /// Returns the memory of all devices together.
    pub fn total(&self) -> u64 {
        self.0.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Returns each device with its memory, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(device, bytes)| (device.as_str(), *bytes))
    }

    /// Adds memory on one device.
    pub fn add(&mut self, device: &str, bytes: u64) {
        let sum = self.0.entry(device.to_owned()).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Returns the sum on each device.
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        other.iter().for_each(|(device, bytes)| sum.add(device, bytes));
        sum
    }

    /// Returns what is left on each device, at least 0.
    pub fn minus(&self, other: &Self) -> Self {
        self.iter().map(|(device, bytes)| (device, bytes.saturating_sub(other.on(device)))).collect()
    }

    /// Returns the larger amount on each device.
    pub fn max(&self, other: &Self) -> Self {
        let devices = self.iter().chain(other.iter()).map(|(device, _)| device);
        Self(devices.map(|device| (device.to_owned(), self.on(device).max(other.on(device)))).collect())
    }

    /// Returns the first device on which there is more than in `room`, if there is one.
    pub fn excess_over(&self, room: &Self) -> Option<&str> {
        self.iter().find(|(device, bytes)| *bytes > room.on(device)).map(|(device, _)| device)
    }

    /// Returns whether `room` has as much on every device.
    pub fn fits_in(&self, room: &Self) -> bool {
        self.excess_over(room).is_none()
    }
}

/// A number of bytes, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 as f64 / f64::from(1 << 20);
        if mib >= 1024.0 { write!(f, "{:.1} GiB", mib / 1024.0) } else { write!(f, "{mib:.0} MiB") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_counted_by_itself() {
        let model: DeviceBytes = [(RAM, 2), ("CUDA0", 5)].into_iter().collect();
        let room: DeviceBytes = [(RAM, 9), ("CUDA0", 4)].into_iter().collect();
        assert_eq!(model.excess_over(&room), Some("CUDA0"));
        assert!(!model.fits_in(&DeviceBytes::ram(9)), "a device without a budget has no room");
        assert!(DeviceBytes::ram(9).fits_in(&room));
        assert_eq!(room.minus(&model), [(RAM, 7), ("CUDA0", 0)].into_iter().collect());
        assert_eq!(model.plus(&model).total(), 14);
        assert_eq!(model.max(&room), [(RAM, 9), ("CUDA0", 5)].into_iter().collect());
    }

    #[test]
    fn bytes_are_printed_in_the_unit_that_people_use() {
        assert_eq!(Bytes(3 << 20).to_string(), "3 MiB");
        assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
    }
}
