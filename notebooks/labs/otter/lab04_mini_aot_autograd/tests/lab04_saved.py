OK_FORMAT = True

test = {
 "name": "lab04_saved",
 "points": 1,
 "suites": [
  {
   "cases": [
    {
     "code": ">>> import fuselab.labs\n>>> fuselab.labs.points('lab04.saved') == 1\nTrue",
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
