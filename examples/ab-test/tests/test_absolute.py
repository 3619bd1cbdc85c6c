import unittest

from solution import absolute


class Test(unittest.TestCase):
    def test_absolute(self):
        self.assertEqual(absolute(-7), 7)
        self.assertEqual(absolute(7), 7)


unittest.main()
