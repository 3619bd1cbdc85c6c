import unittest

from solution import clamp


class Test(unittest.TestCase):
    def test_clamp(self):
        self.assertEqual(clamp(-5), 0)
        self.assertEqual(clamp(4), 4)
        self.assertEqual(clamp(99), 10)


unittest.main()
