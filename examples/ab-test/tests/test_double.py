import unittest

from solution import double


class Test(unittest.TestCase):
    def test_double(self):
        self.assertEqual(double(0), 0)
        self.assertEqual(double(21), 42)


unittest.main()
