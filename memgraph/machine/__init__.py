"""The figures of this device and this disk, and what is allocated on the device."""
