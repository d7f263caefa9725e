"""Tests in a real browser. A package, so that what they share is given up when the last of them is done."""
