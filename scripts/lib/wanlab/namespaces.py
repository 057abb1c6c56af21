"""Namespaces: a network of its own for each host, with one TUN device that leads to the hub.

The namespaces have no names in the file system: they live as long as a descriptor or a process in them does, so
nothing is left behind whatever ends the lab.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .plan import Plan

_CLONE_NEWNET = 0x40000000
_TUN = Path("/dev/net/tun")

# linux/if_tun.h, linux/sockios.h
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8922, 0x8943
_IFF_UP = 0x1
_IFREQ_BYTES = 40

_DEVICE = "lab0"
_QUEUE_PACKETS = 4096
_NICE = "-10"


class LabError(Exception):
    """The lab cannot be had on this machine; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """One host's network: the descriptor that keeps it alive and the hub's end of its TUN device."""

    name: str
    address: str
    descriptor: int
    device: int

    @property
    def enter(self) -> tuple[str, ...]:
        """What to put before a command so that it runs in here, and ends when the thread that started it does.

        It runs ahead of other work on this machine, which would otherwise be measured too.
        """
        network = f"--net=/proc/{os.getpid()}/fd/{self.descriptor}"
        return ("nice", "-n", _NICE, "nsenter", network, "setpriv", "--pdeathsig", "KILL", "--")

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self.descriptor)
        os.close(self.device)


def missing() -> str:
    """What this machine lacks for a lab, "" when nothing."""
    if not hasattr(os, "geteuid") or not Path("/proc/self/ns/net").exists():
        return "network namespaces, which only Linux has"
    if os.geteuid() != 0:
        return "root: network namespaces are made by root only; run it with sudo"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"{_TUN}: load the tun module (modprobe tun), or give the container the device"
    for command in ("nsenter", "setpriv"):
        if shutil.which(command) is None:
            return f"the command {command}: install the package util-linux"
    try:
        with ThreadPoolExecutor(1) as thread:
            os.close(thread.submit(_unshare).result())
    except OSError as error:
        return f"the right to make a network namespace ({error.strerror})"
    return ""


def make(plan: Plan, sysctls: Mapping[str, str]) -> list[Namespace]:
    """A namespace for each host of the plan, in its order. `sysctls` by path below /proc/sys/net, set inside only."""
    made: list[Namespace] = []
    try:
        for host in plan.hosts:
            # Namespaces belong to threads: one of its own for each host leaves this thread where it is.
            with ThreadPoolExecutor(1) as thread:
                made.append(thread.submit(_make, host.name, plan.address(host.name), plan.mtu, sysctls).result())
    except BaseException:
        for namespace in made:
            namespace.close()
        raise
    return made


def _unshare() -> int:
    """Move this thread into a new network namespace; returns its descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _make(name: str, address: str, mtu: int, sysctls: Mapping[str, str]) -> Namespace:
    descriptor = _unshare()
    device = -1
    try:
        for key, value in sysctls.items():
            path = Path("/proc/sys/net", key)
            if path.exists():  # kernels differ in what they have
                path.write_text(value)
        device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, _TUNSETIFF, _request(_DEVICE, struct.pack("=H", _IFF_TUN | _IFF_NO_PI)))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as knob:
            fcntl.ioctl(knob, _SIOCSIFMTU, _request(_DEVICE, struct.pack("=i", mtu)))
            fcntl.ioctl(knob, _SIOCSIFTXQLEN, _request(_DEVICE, struct.pack("=i", _QUEUE_PACKETS)))
            fcntl.ioctl(knob, _SIOCSIFADDR, _request(_DEVICE, _ipv4(address)))
            fcntl.ioctl(knob, _SIOCSIFNETMASK, _request(_DEVICE, _ipv4("255.255.0.0")))
            for each in ("lo", _DEVICE):
                _up(knob, each)
    except BaseException:
        os.close(descriptor)
        if device >= 0:
            os.close(device)
        raise
    return Namespace(name, address, descriptor, device)


def _up(knob: socket.socket, device: str) -> None:
    answer = fcntl.ioctl(knob, _SIOCGIFFLAGS, _request(device))
    (flags,) = struct.unpack_from("=H", answer, 16)
    fcntl.ioctl(knob, _SIOCSIFFLAGS, _request(device, struct.pack("=H", flags | _IFF_UP)))


def _request(device: str, value: bytes = b"") -> bytes:
    """A struct ifreq (netdevice(7))."""
    return device.encode().ljust(16, b"\0") + value.ljust(_IFREQ_BYTES - 16, b"\0")


def _ipv4(address: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
