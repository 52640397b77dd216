OK_FORMAT = True

test = {
 "name": "lab11_halving",
 "points": 3,
 "suites": [
  {
   "cases": [
    {
     "code": ">>> import fuselab.labs\n>>> fuselab.labs.points('lab11.halving') == 3\nTrue",
     "hidden": False,
     "locked": False
    }
   ],
   "scored": True,
   "setup": "",
   "teardown": "",
   "type": "doctest"
  }
 ]
}
