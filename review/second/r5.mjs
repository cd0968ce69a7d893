// Admissions of a mixed stack (own: asked, all: room leased) go one per round trip
import {simulate} from './build/test/instances/simulator.js'
const L=(name,r,c)=>({name,rate:r/1000,capacity:c})
for(const [r,d] of [[100,12],[100,20],[200,8],[500,2],[500,5],[1000,1],[1000,.25]]) for(const part of [.6]){
 // one second of overload so that it is leased, then a load of 0.6 r
 const st=[L('own',4*r,16*r),L('all',r,4*r)]
 const keys=['i','all']
 const sim=await simulate({stack:st,count:1,distance:()=>d,sources:[{instance:0,keys,load:{kind:'at-once',count:Math.min(r,3000)}},{instance:0,keys,load:{kind:'every',ms:1000/(part*r)}}]})
 await sim.run(20000)
 const came=Math.min(r,3000)+20*part*r, decided=sim.admitted+sim.rejected
 const lastR=sim.releases.filter(x=>x.at>15000)
 const w=lastR.map(x=>x.at-x.arrivedAt).sort((a,b)=>a-b)
 console.log(`r ${r} d ${d}: came ${came.toFixed(0)} released ${sim.releases.length} rejected ${sim.rejected} without any answer ${(came-decided).toFixed(0)}; in 15..20 s ${(lastR.length/5).toFixed(0)}/s of ${(part*r).toFixed(0)} offered, 1/rtt ${(1000/(2*d)).toFixed(0)}; wait p50 ${w[w.length>>1]?.toFixed(0)} ms`)
}
