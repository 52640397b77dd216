OK_FORMAT = True

test = {
 "name": "lab05_pointwise",
 "points": 3,
 "suites": [
  {
   "cases": [
    {
     "code": ">>> import fuselab.labs\n>>> fuselab.labs.points('lab05.pointwise') == 3\nTrue",
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
